//! What the derives cannot say about requests: a request that fits the OpenAPI document is one that the code reads.
//!
//! What no schema can say stays looser there: that one time is later than another, that topics have at most 1,000 characters
//! together, that a host is not a private address. And where only a very long expression could say it, the document allows
//! less than the code: a callback's host is a name of at most six labels, of which the last four are short.

use crate::cursor::{self, ListKind};
use hooksaga_saga::{RequestHeaders, SagaStatus};
use serde_json::{Value, json};
use utoipa::openapi::{
    OpenApi, RefOr,
    path::{Operation, Parameter},
    schema::{AdditionalProperties, ArrayItems, Object, ObjectBuilder, Schema, Type},
};

/// One topic of a list.
const TOPIC: &str = "^([A-Za-z0-9_.:-]+|[A-Za-z0-9_.:-]+[.][*]|[*])$";
/// The name of a request header; those of the connection and of this server are refused all the same.
const HEADER_NAME: &str = "^[a-z0-9!#$%&'*+.^_`|~-]{1,100}$";
/// Its value.
const HEADER_VALUE: &str = "^[!-~]([ -~]{0,998}[!-~])?$";

/// The lists, by their paths.
const LISTS: [(&str, ListKind); 6] = [
    ("/v1/events", ListKind::Events),
    ("/v1/subscriptions", ListKind::Subscriptions),
    ("/v1/deliveries", ListKind::Deliveries),
    ("/v1/dead-letters", ListKind::DeadLetters),
    ("/v1/redrives", ListKind::Redrives),
    ("/v1/audit", ListKind::Audit),
];

pub(crate) fn fit(document: &mut OpenApi) {
    for (path, list) in LISTS {
        let operation = document.paths.paths.get_mut(path).and_then(|item| item.get.as_mut());
        let Some(operation) = operation else { continue };
        if let Some(cursor) = parameter(operation, "cursor").and_then(plain) {
            cursor.pattern = Some(cursor::pattern(list));
        }
        if let Some(Schema::Array(statuses)) = parameter(operation, "status") {
            let values = SagaStatus::ALL.iter().map(|status| json!(status.as_str()));
            statuses.items = text().enum_values(Some(values.collect::<Vec<_>>())).build().into_items();
        }
    }
    // A body that may be left out is not one that may be null.
    for operation in document.paths.paths.values_mut().filter_map(|item| item.post.as_mut()) {
        let Some(RefOr::T(body)) = operation.request_body.as_mut() else { continue };
        for content in body.content.values_mut() {
            let RefOr::T(content) = content else { continue };
            let Some(RefOr::T(Schema::OneOf(either))) = &content.schema else { continue };
            if let Some(named) = either.items.iter().find(|item| matches!(item, RefOr::Ref(_))) {
                content.schema = Some(named.clone());
            }
        }
    }
    if let Some(components) = document.components.as_mut() {
        let mut object = |name: &str| match components.schemas.get_mut(name) {
            Some(RefOr::T(Schema::Object(object))) => object.clone(),
            _ => Object::default(),
        };
        let mut created = object("NewSubscriptionRequest");
        fit_subscription(&mut created);
        let one_topic = json!({
            "properties": {"event_type": {"type": "string"}, "event_types": {"type": "null"}},
            "required": ["event_type"],
        });
        let a_list = json!({
            "properties": {"event_type": {"type": "null"}, "event_types": {"type": "array"}},
            "required": ["event_types"],
        });
        demand(&mut created, "oneOf", json!([one_topic, a_list]));
        let mut changed = object("SubscriptionChange");
        fit_subscription(&mut changed);
        demand(&mut changed, "not", json!({"required": ["event_type", "event_types"]}));
        let mut redrive = object("NewRedriveRequest");
        let of_dead_letters = json!({
            "properties": {
                "kind": {"const": "dead_letters"},
                "filter": {"type": "object"},
                "subscription_id": {"type": "null"},
                "since": {"type": "null"},
                "until": {"type": "null"},
            },
            "required": ["filter"],
        });
        let of_events = json!({
            "properties": {
                "kind": {"const": "events"},
                "filter": {"type": "null"},
                "subscription_id": {"type": "integer"},
                "since": {"type": "string"},
            },
            "required": ["subscription_id", "since"],
        });
        demand(&mut redrive, "oneOf", json!([of_dead_letters, of_events]));
        let mut filter = object("RequeueFilter");
        if let Some(RefOr::T(Schema::Object(requeued))) = filter.properties.get_mut("requeued") {
            requeued.enum_values = Some(vec![json!(false), Value::Null]);
        }
        for (name, object) in [
            ("RequeueFilter", filter),
            ("NewSubscriptionRequest", created),
            ("SubscriptionChange", changed),
            ("NewRedriveRequest", redrive),
        ] {
            components.schemas.insert(name.to_owned(), RefOr::T(Schema::Object(object)));
        }
    }
}

/// The parts that a new subscription and a change of one have in common.
fn fit_subscription(object: &mut Object) {
    if let Some(RefOr::T(Schema::Array(topics))) = object.properties.get_mut("event_types") {
        topics.items =
            text().min_length(Some(1)).max_length(Some(100)).pattern(Some(TOPIC)).build().into_items();
        topics.max_items = Some(hooksaga_saga::Topics::MAX);
    }
    if let Some(RefOr::T(Schema::Object(headers))) = object.properties.get_mut("headers") {
        headers.max_properties = Some(RequestHeaders::MAX);
        headers.property_names = Some(Box::new(text().pattern(Some(HEADER_NAME)).build().into()));
        let value = text().pattern(Some(HEADER_VALUE)).build();
        headers.additional_properties = Some(Box::new(AdditionalProperties::RefOr(RefOr::T(value.into()))));
    }
}

/// Adds a keyword that the library has no field for.
fn demand(object: &mut Object, keyword: &str, value: Value) {
    object.extensions.get_or_insert_default().insert(keyword.to_owned(), value);
}

fn parameter<'a>(operation: &'a mut Operation, name: &str) -> Option<&'a mut Schema> {
    operation.parameters.iter_mut().flatten().find_map(|parameter| match parameter {
        RefOr::T(Parameter { name: own, schema: Some(RefOr::T(schema)), .. }) if own == name => Some(schema),
        _ => None,
    })
}

fn plain(schema: &mut Schema) -> Option<&mut Object> {
    match schema {
        Schema::Object(object) => Some(object),
        _ => None,
    }
}

fn text() -> ObjectBuilder {
    ObjectBuilder::new().schema_type(Type::String)
}

trait IntoItems {
    fn into_items(self) -> ArrayItems;
}

impl IntoItems for Object {
    fn into_items(self) -> ArrayItems {
        ArrayItems::RefOrSchema(Box::new(RefOr::T(Schema::Object(self))))
    }
}
