//! Subscriptions.

use crate::{
    callback_url,
    errors::FieldErrors,
    json::{self, Object},
    query::Params,
    time::Time,
    validate,
};
use hooksaga_pipeline::SigningSecret;
use hooksaga_store::{
    NewSubscription, Subscription, SubscriptionFilter, SubscriptionPatch, Verification, VerificationStatus,
};
use serde::Serialize;
use utoipa::{IntoParams, ToSchema};

const VERIFIED_IS_READ_ONLY: &str =
    "is read-only: it becomes true when the callback answers a verification challenge";
const SECRET_BY_ROTATION: &str = "cannot be changed here: use rotate-secret";
const READ_ONLY: &str = "is read-only";

/// A subscription to create.
#[derive(Debug, ToSchema)]
pub(crate) struct NewSubscriptionRequest {
    #[schema(min_length = 1, max_length = 100, pattern = "^[A-Za-z0-9_.:-]+$", example = "order.created")]
    event_type: String,
    /// An https URL with a host, without user info and fragment.
    #[schema(max_length = 500, format = "uri", example = "https://example.com/webhooks")]
    callback_url: String,
    /// Deliveries of an inactive subscription wait.
    #[schema(value_type = bool, default = true, required = false)]
    active: bool,
    /// Attempts in all, the first included; the server's setting if it is not given.
    #[schema(minimum = 1, maximum = 100)]
    max_retry_limit: Option<u32>,
    /// Signs the callbacks; made by the server if it is not given.
    #[schema(value_type = Option<String>, pattern = "^whsec_", example = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")]
    secret: Option<SigningSecret>,
}

impl NewSubscriptionRequest {
    pub(crate) fn read(mut object: Object<'_>, allow_http: bool, errors: &mut FieldErrors) -> Option<Self> {
        let event_type =
            object.required("event_type", errors, |value| json::string(value).and_then(validate::event_type));
        let callback_url = object.required("callback_url", errors, |value| {
            json::string(value).and_then(|url| callback_url::check(url, allow_http))
        });
        let active = object.optional("active", errors, json::boolean);
        let max_retry_limit =
            object.optional("max_retry_limit", errors, |value| json::or_null(value, validate::retry_limit));
        let secret = object.optional("secret", errors, |value| {
            json::or_null(value, |value| json::string(value).and_then(|text| validate::secret(&text)))
        });
        object.refuse("verified", errors, VERIFIED_IS_READ_ONLY);
        object.finish(errors);
        Some(Self {
            event_type: event_type?,
            callback_url: callback_url?,
            active: active.unwrap_or(true),
            max_retry_limit: max_retry_limit.flatten(),
            secret: secret.flatten(),
        })
    }

    /// The subscription and its secret.
    pub(crate) fn into_parts(self) -> (NewSubscription, SigningSecret) {
        let new = NewSubscription {
            event_type: self.event_type,
            callback_url: self.callback_url,
            active: self.active,
            max_retry_limit: self.max_retry_limit,
        };
        (new, self.secret.unwrap_or_else(SigningSecret::generate))
    }
}

/// A change of a subscription; what is absent stays.
#[derive(Debug, ToSchema)]
pub(crate) struct SubscriptionChange {
    #[schema(nullable = false, min_length = 1, max_length = 100, pattern = "^[A-Za-z0-9_.:-]+$")]
    event_type: Option<String>,
    /// A URL that differs from the present one has to be verified before anything is delivered to it.
    #[schema(nullable = false, max_length = 500, format = "uri")]
    callback_url: Option<String>,
    #[schema(nullable = false)]
    active: Option<bool>,
    /// Null clears it: the server's setting applies to new deliveries.
    #[schema(value_type = Option<u32>, minimum = 1, maximum = 100)]
    max_retry_limit: Option<Option<u32>>,
}

impl SubscriptionChange {
    pub(crate) fn read(mut object: Object<'_>, allow_http: bool, errors: &mut FieldErrors) -> Self {
        let change = Self {
            event_type: object
                .optional("event_type", errors, |value| json::string(value).and_then(validate::event_type)),
            callback_url: object.optional("callback_url", errors, |value| {
                json::string(value).and_then(|url| callback_url::check(url, allow_http))
            }),
            active: object.optional("active", errors, json::boolean),
            max_retry_limit: object
                .optional("max_retry_limit", errors, |value| json::or_null(value, validate::retry_limit)),
        };
        object.refuse("verified", errors, VERIFIED_IS_READ_ONLY);
        object.refuse("secret", errors, SECRET_BY_ROTATION);
        for name in ["id", "verification", "created_at", "updated_at"] {
            object.refuse(name, errors, READ_ONLY);
        }
        object.finish(errors);
        change
    }
}

impl From<SubscriptionChange> for SubscriptionPatch {
    fn from(change: SubscriptionChange) -> Self {
        Self {
            event_type: change.event_type,
            callback_url: change.callback_url,
            active: change.active,
            max_retry_limit: change.max_retry_limit,
        }
    }
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
    checked_at: Option<Time>,
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
            checked_at: verification.checked_at.map(Time::from),
        }
    }
}

/// A subscription.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct SubscriptionView {
    id: i64,
    event_type: String,
    callback_url: String,
    active: bool,
    /// Whether the present callback_url has answered a challenge.
    verified: bool,
    #[schema(required)]
    max_retry_limit: Option<u32>,
    verification: VerificationView,
    created_at: Time,
    updated_at: Time,
}

impl From<Subscription> for SubscriptionView {
    fn from(subscription: Subscription) -> Self {
        Self {
            id: subscription.id.0,
            event_type: subscription.event_type,
            callback_url: subscription.callback_url,
            active: subscription.active,
            verified: subscription.verified,
            max_retry_limit: subscription.max_retry_limit,
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
    event_type: Option<String>,
    active: Option<bool>,
    verified: Option<bool>,
}

impl SubscriptionsQuery {
    pub(crate) fn read(params: &mut Params, errors: &mut FieldErrors) -> Self {
        Self {
            event_type: params.take("event_type", errors, validate::event_type),
            active: params.take("active", errors, |text| validate::boolean(&text)),
            verified: params.take("verified", errors, |text| validate::boolean(&text)),
        }
    }
}

impl From<SubscriptionsQuery> for SubscriptionFilter {
    fn from(query: SubscriptionsQuery) -> Self {
        Self { event_type: query.event_type, active: query.active, verified: query.verified }
    }
}
