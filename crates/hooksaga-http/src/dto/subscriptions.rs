//! Subscriptions.

use crate::{
    auth::Caller,
    cursor::ListKind,
    errors::FieldErrors,
    json::{self, Null, Object},
    listing::ListParameters,
    problem::Problem,
    query::Params,
    time::ApiTime,
    validate::{self, AskedUrl},
};
use hooksaga_pipeline::{SecretKey, SigningSecret};
use hooksaga_saga::{CallbackUrl, RequestHeaders, SubscriptionId, Tenant, Topic, Topics};
use hooksaga_store::{
    Disabled, NewSubscription, Subscription, SubscriptionFilter, SubscriptionPatch, Verification,
    VerificationStatus,
};
use serde::Serialize;
use serde_json::value::RawValue;
use utoipa::{IntoParams, ToSchema};

const VERIFIED_IS_READ_ONLY: &str =
    "is read-only: it becomes true when the callback returns the verification challenge";
const SECRET_BY_ROTATION: &str = "cannot be changed here: use rotate-secret";
const READ_ONLY: &str = "is read-only";

/// Stands in for a field that is described here and read by [`topics`].
#[derive(Debug)]
struct ReadAsTopics;

/// The topics of a request: one as `event_type`, or a list as `event_types`; `None` if neither is given or something is
/// wrong with them.
fn topics(object: &mut Object<'_>, null: Null, errors: &mut FieldErrors) -> Option<Topics> {
    let one = object
        .member("event_type", null, errors, |value| validate::parsed_json::<Topic>(value).map(Topics::from));
    let list = object.member("event_types", null, errors, |value| {
        let elements = json::elements(value, MAX_LISTED_TOPICS)?;
        if elements.count > MAX_LISTED_TOPICS {
            return Err(format!("must list 1 to {} different topics", Topics::MAX));
        }
        let topics = elements.items.into_iter().enumerate().map(|(index, item)| {
            let shown = item.get();
            let shown = if shown.len() <= MAX_SHOWN { format!(" ({shown})") } else { String::new() };
            validate::parsed_json(item).map_err(|rule| format!("the element at {index}{shown} {rule}"))
        });
        Topics::new(topics.collect::<Result<Vec<Topic>, String>>()?).map_err(|invalid| invalid.to_string())
    });
    if one.is_some() && list.is_some() {
        errors.add("event_types", "must not be given together with event_type");
    }
    one.or(list)
}

/// A longer element is named by its place alone.
const MAX_SHOWN: usize = 120;

/// A list may repeat topics; one that is longer than this is not read to its end.
const MAX_LISTED_TOPICS: usize = 1000;

fn callback_url(value: &RawValue, allow_http: bool) -> Result<CallbackUrl, String> {
    let text = json::string(value)?;
    CallbackUrl::parse(&text, allow_http).map_err(|invalid| invalid.to_string())
}

/// A subscription to create.
#[derive(Debug, ToSchema)]
#[expect(dead_code, reason = "event_type and event_types describe what `topics` is read from")]
pub(crate) struct NewSubscriptionRequest {
    /// One topic: an event type, `prefix.*` or `*`. Exactly one of `event_type` and `event_types` is given.
    #[schema(value_type = Option<String>, min_length = 1, max_length = 100, pattern = "^([A-Za-z0-9_.:-]+|[A-Za-z0-9_.:-]+[.][*]|[*])$", example = "order.created")]
    event_type: ReadAsTopics,
    /// Topics: event types, `prefix.*`, or `*`; at most 50, together at most 1,000 characters.
    #[schema(value_type = Option<Vec<String>>, min_items = 1, example = json!(["order.created", "invoice.*"]))]
    event_types: ReadAsTopics,
    #[schema(ignore)]
    topics: Topics,
    /// An https URL with a host, without user info and fragment. A public address in place of a name is read, too; in
    /// development mode also http.
    #[schema(value_type = String, max_length = 500, format = "uri", pattern = "^https://([A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?[.]){0,2}([A-Za-z0-9_]([A-Za-z0-9_-]{0,28}[A-Za-z0-9_])?[.]){0,3}[A-Za-z]([A-Za-z0-9_-]{0,28}[A-Za-z0-9_])?[.]?(:[1-9][0-9]{0,3}|:[1-5][0-9]{4})?([/?][!$-;=?-_a-~]*)?$", example = "https://example.com/webhooks")]
    callback_url: CallbackUrl,
    /// Whose subscription it is: it receives only this tenant's events. `default` if it is not given; a key that is bound to
    /// a tenant may name no other.
    #[schema(value_type = Option<String>, min_length = 1, max_length = 100, pattern = "^[A-Za-z0-9_.:-]+$")]
    tenant: Option<Tenant>,
    /// For people.
    #[schema(min_length = 1, max_length = 500, pattern = "^[^\\u0000-\\u001f\\u007f-\\u009f]*$")]
    description: Option<String>,
    /// Deliveries of an inactive subscription wait.
    #[schema(value_type = Option<bool>, default = true)]
    active: bool,
    /// Attempts in all, the first included; the server's setting if it is not given.
    #[schema(minimum = 1, maximum = 100)]
    max_retry_limit: Option<u32>,
    /// Attempts started per second at most, retries included; not limited if it is not given.
    #[schema(minimum = 1, maximum = 10000)]
    rate_limit: Option<u32>,
    /// Static request headers, for receivers that want credentials of their own: at most 16, names to values. Values are
    /// never shown again, and a callback_url of another scheme, host or port drops them.
    #[schema(value_type = Option<std::collections::BTreeMap<String, String>>, example = json!({"authorization": "Bearer abc123"}))]
    headers: Option<RequestHeaders>,
    /// Signs the callbacks; made by the server if it is not given.
    #[schema(value_type = Option<String>, pattern = "^whsec_(([A-Za-z0-9+/]{4}){8,20}([A-Za-z0-9+/][AQgw]==|[A-Za-z0-9+/]{2}[AEIMQUYcgkosw048]=)?|([A-Za-z0-9+/]{4}){21}([A-Za-z0-9+/][AQgw]==)?)$", example = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")]
    secret: Option<SigningSecret>,
}

impl NewSubscriptionRequest {
    pub(crate) fn read(mut object: Object<'_>, allow_http: bool, errors: &mut FieldErrors) -> Option<Self> {
        let topics = topics(&mut object, Null::IsAbsent, errors);
        if topics.is_none() && !errors.mentions("event_type") {
            errors.add("event_type", "is required: give event_type (one topic) or event_types (a list)");
        }
        let callback_url = object.required("callback_url", errors, |value| callback_url(value, allow_http));
        let tenant = object.optional("tenant", errors, validate::parsed_json);
        let description = object.optional("description", errors, validate::description);
        let active = object.optional("active", errors, json::boolean);
        let max_retry_limit = object.optional("max_retry_limit", errors, validate::retry_limit);
        let rate_limit = object.optional("rate_limit", errors, validate::rate_limit);
        let headers = object.optional("headers", errors, validate::request_headers);
        let secret = object
            .optional("secret", errors, |value| json::string(value).and_then(|text| validate::secret(&text)));
        object.refuse("verified", errors, VERIFIED_IS_READ_ONLY);
        object.refuse("disabled", errors, READ_ONLY);
        object.finish(errors);
        Some(Self {
            event_type: ReadAsTopics,
            event_types: ReadAsTopics,
            topics: topics?,
            callback_url: callback_url?,
            tenant,
            description,
            active: active.unwrap_or(true),
            max_retry_limit,
            rate_limit,
            headers,
            secret,
        })
    }

    /// The subscription, if the caller may create it, and what is secret of it.
    pub(crate) fn into_parts(
        self,
        caller: &Caller,
    ) -> Result<(NewSubscription, SigningSecret, RequestHeaders), Problem> {
        let tenant = caller.owner(self.tenant)?;
        if tenant.is_reserved() {
            caller.must_be_unbound()?;
        }
        let headers = self.headers.unwrap_or_default();
        let new = NewSubscription {
            tenant,
            topics: self.topics,
            callback_url: self.callback_url,
            description: self.description,
            active: self.active,
            max_retry_limit: self.max_retry_limit,
            rate_limit: self.rate_limit,
            headers: Some(headers.names()).filter(|names| !names.is_empty()),
        };
        Ok((new, self.secret.unwrap_or_else(SigningSecret::generate), headers))
    }
}

/// A change of a subscription; what is absent stays. What can be cleared is cleared by null.
#[derive(Debug, ToSchema)]
#[expect(dead_code, reason = "event_type and event_types describe what `topics` is read from")]
pub(crate) struct SubscriptionChange {
    /// One topic; at most one of `event_type` and `event_types` is given.
    #[schema(value_type = Option<String>, nullable = false, min_length = 1, max_length = 100, pattern = "^([A-Za-z0-9_.:-]+|[A-Za-z0-9_.:-]+[.][*]|[*])$")]
    event_type: ReadAsTopics,
    #[schema(value_type = Option<Vec<String>>, nullable = false, min_items = 1)]
    event_types: ReadAsTopics,
    #[schema(ignore)]
    topics: Option<Topics>,
    /// Null clears it.
    #[schema(value_type = Option<String>, min_length = 1, max_length = 500, pattern = "^[^\\u0000-\\u001f\\u007f-\\u009f]*$")]
    description: Option<Option<String>>,
    /// A URL that differs from the present one has to be verified before anything is delivered to it.
    #[schema(value_type = Option<String>, nullable = false, max_length = 500, format = "uri", pattern = "^https://([A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?[.]){0,2}([A-Za-z0-9_]([A-Za-z0-9_-]{0,28}[A-Za-z0-9_])?[.]){0,3}[A-Za-z]([A-Za-z0-9_-]{0,28}[A-Za-z0-9_])?[.]?(:[1-9][0-9]{0,3}|:[1-5][0-9]{4})?([/?][!$-;=?-_a-~]*)?$")]
    callback_url: Option<CallbackUrl>,
    /// True also clears `disabled`; false keeps it.
    #[schema(nullable = false)]
    active: Option<bool>,
    /// Null clears it: the server's setting applies to new deliveries.
    #[schema(value_type = Option<u32>, minimum = 1, maximum = 100)]
    max_retry_limit: Option<Option<u32>>,
    /// Attempts started per second at most; null removes the limit.
    #[schema(value_type = Option<u32>, minimum = 1, maximum = 10000)]
    rate_limit: Option<Option<u32>>,
    /// Replaces all static request headers; null removes them. A callback_url of another scheme, host or port drops them,
    /// unless they are given again with it.
    #[schema(value_type = Option<std::collections::BTreeMap<String, String>>)]
    headers: Option<Option<RequestHeaders>>,
}

impl SubscriptionChange {
    pub(crate) fn read(mut object: Object<'_>, allow_http: bool, errors: &mut FieldErrors) -> Self {
        let change = Self {
            event_type: ReadAsTopics,
            event_types: ReadAsTopics,
            topics: topics(&mut object, Null::IsAValue, errors),
            description: object
                .given("description", errors, |value| json::or_null(value, validate::description)),
            callback_url: object.given("callback_url", errors, |value| callback_url(value, allow_http)),
            active: object.given("active", errors, json::boolean),
            max_retry_limit: object
                .given("max_retry_limit", errors, |value| json::or_null(value, validate::retry_limit)),
            rate_limit: object
                .given("rate_limit", errors, |value| json::or_null(value, validate::rate_limit)),
            headers: object.given("headers", errors, |value| json::or_null(value, validate::request_headers)),
        };
        object.refuse("verified", errors, VERIFIED_IS_READ_ONLY);
        object.refuse("secret", errors, SECRET_BY_ROTATION);
        for name in [
            "id",
            "tenant",
            "verification",
            "disabled",
            "health",
            "waiting",
            "last_failure",
            "created_at",
            "updated_at",
        ] {
            object.refuse(name, errors, READ_ONLY);
        }
        object.finish(errors);
        change
    }

    /// With what is secret of it sealed.
    pub(crate) fn into_patch(self, id: SubscriptionId, key: &SecretKey) -> SubscriptionPatch {
        SubscriptionPatch {
            topics: self.topics,
            description: self.description,
            callback_url: self.callback_url,
            active: self.active,
            max_retry_limit: self.max_retry_limit,
            rate_limit: self.rate_limit,
            headers: self.headers.map(|headers| headers.and_then(|headers| key.seal_headers(id, &headers))),
        }
    }
}

/// How to verify a callback.
#[derive(Debug, Default, ToSchema)]
pub(crate) struct VerificationRequest {
    /// True: the endpoint is not asked, the caller vouches for it. Needs a key that is bound to no tenant, and a server
    /// with `callbacks.allow_trusted`.
    #[schema(value_type = Option<bool>, default = false)]
    pub(crate) trusted: bool,
}

impl VerificationRequest {
    pub(crate) fn read(object: &mut Object<'_>, errors: &mut FieldErrors) -> Self {
        Self { trusted: object.optional("trusted", errors, json::boolean).unwrap_or_default() }
    }
}

/// A test event and its delivery.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct TestDelivery {
    pub(crate) event_id: i64,
    pub(crate) saga_id: i64,
}

/// How the verification of the callback stands.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct VerificationView {
    #[schema(example = "pending", value_type = String, pattern = "^(pending|verified|failed)$")]
    status: &'static str,
    /// The error code of the last check, if it failed.
    #[schema(required)]
    last_error: Option<String>,
    #[schema(required)]
    checked_at: Option<ApiTime>,
    /// Who vouched for the present callback_url, if it did not prove itself.
    #[schema(required)]
    trusted: Option<TrustedView>,
}

/// Somebody vouched for an endpoint.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct TrustedView {
    /// The name of the API key.
    by: String,
    at: ApiTime,
}

/// Why and when the server switched a subscription off.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct DisabledView {
    /// `GONE`: the endpoint returned 410. `FAILING`: every attempt has failed for too long.
    #[schema(example = "GONE", value_type = String, pattern = "^(GONE|FAILING)$")]
    reason: &'static str,
    at: ApiTime,
}

impl From<Disabled> for DisabledView {
    fn from(disabled: Disabled) -> Self {
        Self { reason: disabled.reason.as_str(), at: disabled.at.into() }
    }
}

impl From<Verification> for VerificationView {
    fn from(verification: Verification) -> Self {
        Self {
            status: match verification.status {
                VerificationStatus::Pending => "pending",
                VerificationStatus::Verified => "verified",
                VerificationStatus::Failed => "failed",
            },
            last_error: verification.last_error.map(|code| code.as_str().to_owned()),
            checked_at: verification.checked_at.map(ApiTime::from),
            trusted: verification
                .trusted
                .map(|trusted| TrustedView { by: trusted.by, at: trusted.at.into() }),
        }
    }
}

/// A subscription.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct SubscriptionView {
    id: i64,
    tenant: String,
    /// Its topics, sorted.
    event_types: Vec<String>,
    /// The same as one text, joined with commas.
    event_type: String,
    callback_url: String,
    #[schema(required)]
    description: Option<String>,
    active: bool,
    /// Whether the present callback_url has returned a challenge.
    verified: bool,
    #[schema(required)]
    max_retry_limit: Option<u32>,
    /// Attempts started per second at most.
    #[schema(required)]
    rate_limit: Option<u32>,
    /// The names of its static request headers.
    headers: Vec<String>,
    /// Set while the server has it switched off; activating it clears it.
    #[schema(required)]
    disabled: Option<DisabledView>,
    verification: VerificationView,
    created_at: ApiTime,
    updated_at: ApiTime,
}

impl From<Subscription> for SubscriptionView {
    fn from(subscription: Subscription) -> Self {
        Self {
            id: subscription.id.0,
            tenant: subscription.tenant,
            event_types: subscription.event_type.split(',').map(str::to_owned).collect(),
            event_type: subscription.event_type,
            callback_url: subscription.callback_url,
            description: subscription.description,
            active: subscription.active,
            verified: subscription.verified,
            max_retry_limit: subscription.max_retry_limit,
            rate_limit: subscription.rate_limit,
            headers: subscription.headers,
            disabled: subscription.disabled.map(DisabledView::from),
            verification: subscription.verification.into(),
            created_at: subscription.created_at.into(),
            updated_at: subscription.updated_at.into(),
        }
    }
}

/// A subscription that was just created, with its secret: it is shown this once.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct NewSubscriptionView {
    #[serde(flatten)]
    pub(crate) subscription: SubscriptionView,
    #[schema(example = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")]
    pub(crate) secret: String,
}

/// A new secret: it is shown this once.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct RotatedSecret {
    #[schema(example = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")]
    pub(crate) secret: String,
}

/// Which subscriptions.
#[derive(Debug, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct SubscriptionsQuery {
    /// Has exactly this topic.
    #[param(value_type = Option<String>, min_length = 1, max_length = 100, pattern = "^([A-Za-z0-9_.:-]+|[A-Za-z0-9_.:-]+[.][*]|[*])$")]
    event_type: Option<Topic>,
    #[param(value_type = Option<String>, min_length = 1, max_length = 500, pattern = "^[!-~]+$")]
    callback_url: Option<AskedUrl>,
    active: Option<bool>,
    verified: Option<bool>,
    /// Switched off by the server.
    disabled: Option<bool>,
}

impl ListParameters for SubscriptionsQuery {
    const LIST: ListKind = ListKind::Subscriptions;

    fn read(params: &mut Params, errors: &mut FieldErrors) -> Self {
        Self {
            event_type: params.parsed("event_type", errors),
            callback_url: params.take("callback_url", errors, |text| validate::asked_url(&text)),
            active: params.take("active", errors, |text| validate::boolean(&text)),
            verified: params.take("verified", errors, |text| validate::boolean(&text)),
            disabled: params.take("disabled", errors, |text| validate::boolean(&text)),
        }
    }
}

impl SubscriptionsQuery {
    /// `None`: no subscription can match.
    pub(crate) fn filter(self) -> Option<SubscriptionFilter> {
        let callback_url = match self.callback_url {
            Some(AskedUrl::OfNobody) => return None,
            Some(AskedUrl::Valid(url)) => Some(url),
            None => None,
        };
        Some(SubscriptionFilter {
            event_type: self.event_type,
            callback_url,
            active: self.active,
            verified: self.verified,
            disabled: self.disabled,
            disabled_after: None,
        })
    }
}
