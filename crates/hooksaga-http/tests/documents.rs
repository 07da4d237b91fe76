//! `/openapi.json` and `/docs`.

use crate::{keys::GUARDED, support::TestApi};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};

async fn document(api: &TestApi) -> Value {
    let response = api.bare("GET", "/openapi.json", &[], "").await;
    assert_eq!(response.header("content-type"), "application/json");
    response.expect(200)
}

/// The same path with ids as the document writes them.
fn pattern(path: &str) -> String {
    let id = if path.starts_with("/v1/deliveries") { "{saga_id}" } else { "{id}" };
    path.split('/').map(|part| if part == "1" { id } else { part }).collect::<Vec<_>>().join("/")
}

#[tokio::test]
async fn the_document_lists_exactly_the_routes() {
    let api = TestApi::new().await;
    let document = document(&api).await;
    assert_eq!(document["openapi"], "3.1.0");
    let mut listed = BTreeSet::new();
    for (path, item) in document["paths"].as_object().unwrap() {
        for method in item.as_object().unwrap().keys() {
            listed.insert((method.to_uppercase(), path.clone()));
        }
    }
    let mut expected: BTreeSet<_> =
        GUARDED.iter().map(|(method, path, _)| ((*method).to_owned(), pattern(path))).collect();
    for path in ["/healthz", "/readyz", "/metrics"] {
        expected.insert(("GET".to_owned(), path.to_owned()));
    }
    assert_eq!(listed, expected);

    // And the router agrees: a listed method exists, every other does not.
    for path in document["paths"].as_object().unwrap().keys() {
        let concrete = path.replace("{id}", "1").replace("{saga_id}", "1");
        for method in ["GET", "POST", "PATCH", "PUT", "DELETE"] {
            let response = api.bare(method, &concrete, &[], "").await;
            let is_listed = listed.contains(&(method.to_owned(), path.clone()));
            assert_eq!(response.status != 405, is_listed, "{method} {path}");
            assert_ne!(response.status, 404, "{method} {path}");
        }
    }
}

#[tokio::test]
async fn operations_say_their_scope_and_their_problems() {
    let api = TestApi::new().await;
    let document = document(&api).await;
    let mut ids = BTreeSet::new();
    for (method, path, scope) in GUARDED {
        let operation = &document["paths"][pattern(path)][method.to_lowercase()];
        let scopes: Vec<_> = scope.iter().map(|scope| scope.as_str()).collect();
        assert_eq!(operation["security"], json!([{"key": scopes}]), "{method} {path}");
        assert!(operation["summary"].as_str().is_some_and(|text| !text.is_empty()));
        assert!(ids.insert(operation["operationId"].as_str().unwrap().to_owned()), "ids are unique");
        let responses = operation["responses"].as_object().unwrap();
        for status in ["401", "403", "422", "503"] {
            assert!(responses.contains_key(status), "{method} {path} {status}");
        }
        for (status, response) in responses.iter().filter(|(status, _)| *status != "204") {
            let kind = if status.starts_with('2') { "application/json" } else { "application/problem+json" };
            assert!(response["content"][kind]["schema"].is_object(), "{method} {path} {status}: {response}");
        }
        // A redrive names a subscription in its body.
        let names_a_row = path.contains("/1") || (method, path) == ("POST", "/v1/redrives");
        assert_eq!(names_a_row, responses.contains_key("404"), "{method} {path}");
    }
    assert_eq!(document["components"]["securitySchemes"]["key"]["scheme"], "bearer");
    for request in [
        "EventRequest",
        "BatchRequest",
        "NewSubscriptionRequest",
        "SubscriptionChange",
        "VerificationRequest",
        "RequeueAllRequest",
        "RequeueFilter",
        "PortalSessionRequest",
    ] {
        let schema = &document["components"]["schemas"][request];
        assert_eq!(schema["additionalProperties"], false, "{request}: {schema}");
    }
}

#[tokio::test]
async fn every_reference_of_the_document_leads_somewhere() {
    fn references(node: &Value, found: &mut BTreeSet<String>) {
        match node {
            Value::Object(members) => {
                if let Some(Value::String(reference)) = members.get("$ref") {
                    found.insert(reference.clone());
                }
                members.values().for_each(|member| references(member, found));
            }
            Value::Array(items) => items.iter().for_each(|item| references(item, found)),
            _ => {}
        }
    }
    let api = TestApi::new().await;
    let document = document(&api).await;
    let mut found = BTreeSet::new();
    references(&document, &mut found);
    assert!(found.contains("#/components/schemas/Problem"));
    for reference in found {
        let pointer = reference.strip_prefix('#').unwrap();
        assert!(document.pointer(pointer).is_some(), "{reference}");
    }
}

/// The responses of the API have exactly the members that the document promises, at every level.
#[tokio::test]
async fn responses_fit_their_schemas() {
    let api = TestApi::new().await;
    let document = document(&api).await;
    api.verified_subscription("t", "hook").await;
    api.dead_letter("t", &json!(1)).await;
    api.post("/v1/redrives", &json!({"kind": "dead_letters", "filter": {}})).await.expect(202);
    for (_, path, _) in GUARDED.into_iter().filter(|(method, ..)| *method == "GET") {
        let responses = &document["paths"][pattern(path)]["get"]["responses"];
        let schema = &responses["200"]["content"]["application/json"]["schema"];
        check(&document, schema, &api.get(path).await.expect(200), path);
    }
}

fn check(document: &Value, schema: &Value, value: &Value, path: &str) {
    let mut members = BTreeMap::new();
    collect_members(document, schema, &mut members);
    match value {
        Value::Object(object) if !members.is_empty() => {
            assert_eq!(object.keys().collect::<BTreeSet<_>>(), members.keys().collect(), "{path}");
            for (name, value) in object {
                check(document, &members[name], value, &format!("{path} {name}"));
            }
        }
        Value::Array(items) => {
            let element = &resolved(document, schema)["items"];
            items.iter().for_each(|item| check(document, element, item, path));
        }
        _ => {}
    }
}

/// The members of an object, all of which must be required: a response leaves none out.
fn collect_members(document: &Value, schema: &Value, members: &mut BTreeMap<String, Value>) {
    let schema = resolved(document, schema);
    for (name, member) in schema["properties"].as_object().into_iter().flatten() {
        let required = schema["required"].as_array().is_some_and(|required| required.contains(&json!(name)));
        assert!(required, "{name} of {schema}");
        members.insert(name.clone(), member.clone());
    }
    for part in schema["allOf"].as_array().into_iter().flatten() {
        collect_members(document, part, members);
    }
}

fn resolved<'a>(document: &'a Value, schema: &'a Value) -> &'a Value {
    match schema["$ref"].as_str() {
        Some(reference) => document.pointer(reference.strip_prefix('#').unwrap()).unwrap(),
        None => schema,
    }
}

#[tokio::test]
async fn the_page_works_offline_under_a_strict_policy() {
    let api = TestApi::new().await;
    let mut page = String::new();
    for (path, content_type) in
        [("/docs", "text/html"), ("/docs/docs.css", "text/css"), ("/docs/docs.js", "text/javascript")]
    {
        let response = api.bare("GET", path, &[], "").await;
        assert_eq!(response.status, 200);
        assert!(response.header("content-type").starts_with(content_type));
        let policy = response.header("content-security-policy");
        assert!(policy.starts_with("default-src 'none'"));
        assert!(!policy.contains("unsafe") && !policy.contains('*') && !policy.contains("http"));
        assert!(response.body.len() > 500);
        page.push_str(response.text());
    }
    for outside in [
        "http://",
        "https://",
        "src=\"//",
        "href=\"//",
        "@import",
        "url(",
        "innerHTML",
        " style=",
        " onclick=",
    ] {
        assert!(!page.contains(outside), "{outside}");
    }
    // What the page refers to is there.
    for part in page.split('"').filter(|part| part.starts_with("/docs/") || *part == "/openapi.json") {
        assert_eq!(api.bare("GET", part, &[], "").await.status, 200, "{part}");
    }
}

#[tokio::test]
async fn the_document_has_an_example_for_every_operation_and_says_what_endpoints_receive() {
    let api = TestApi::new().await;
    let document = document(&api).await;
    for (method, path, _) in GUARDED {
        let operation = &document["paths"][pattern(path)][method.to_lowercase()];
        let responses = operation["responses"].as_object().unwrap();
        let shown = responses.values().filter_map(|response| response["content"].as_object());
        let examples =
            shown.flat_map(|content| content.values()).filter(|content| !content["example"].is_null());
        let without = responses.keys().any(|status| status == "204");
        assert!(without || examples.count() > 0, "{method} {path} has no example in docs/API.md");
        let body = &operation["requestBody"]["content"]["application/json"];
        // A body that may be left out needs none.
        if operation["requestBody"]["required"] == true {
            assert!(!body["example"].is_null(), "{method} {path} has no example of a request");
        }
    }
    let webhooks = document["webhooks"].as_object().unwrap();
    let operational = ["disabled", "failing", "verified"].map(|kind| format!("hooksaga.subscription.{kind}"));
    let expected: Vec<&str> =
        ["event"].into_iter().chain(operational.iter().map(String::as_str)).chain(["verification"]).collect();
    assert_eq!(webhooks.keys().collect::<Vec<_>>(), expected);
    for event_type in &operational {
        let body = &webhooks[event_type]["post"]["requestBody"]["content"]["application/json"];
        let members = body["schema"]["properties"].as_object().unwrap();
        let mut shown = vec!["at", "callback_url", "reason", "subscription_id", "tenant", "type"];
        shown.retain(|member| *member != "reason" || event_type.ends_with("disabled"));
        assert_eq!(members.keys().collect::<Vec<_>>(), shown);
        assert_eq!(body["example"].as_object().unwrap().keys().collect::<Vec<_>>(), shown);
        assert_eq!(body["schema"]["required"].as_array().unwrap().len(), shown.len());
        assert_eq!(members["type"]["const"], **event_type);
    }
    for hook in webhooks.values() {
        let names: BTreeSet<&str> = hook["post"]["parameters"]
            .as_array()
            .unwrap()
            .iter()
            .map(|header| header["name"].as_str().unwrap())
            .collect();
        for name in ["webhook-id", "webhook-timestamp", "webhook-signature"] {
            assert!(names.contains(name), "{name}");
        }
    }
}
