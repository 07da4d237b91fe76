//! The tenant and correlation id of an event, for log lines about it.

/// What every line about a delivery says of its event, besides ids.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Trace {
    pub tenant: String,
    pub correlation_id: String,
}

impl Trace {
    pub fn new(tenant: &str, correlation_id: &str) -> Self {
        Self { tenant: tenant.to_owned(), correlation_id: correlation_id.to_owned() }
    }
}
