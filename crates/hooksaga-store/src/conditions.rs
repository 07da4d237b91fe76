//! The filters of lists as conditions on columns. Back ends write the conditions in their own SQL.

use crate::{AuditFilter, DeadLetterFilter, DeliveryFilter, EventFilter, SubscriptionFilter, TenantScope};
use hooksaga_saga::Timestamp;

/// Conditions that must all hold. Columns and conditions are constants of this program; what a caller gives is always a
/// parameter.
pub trait Conditions {
    /// `column` is this text, if there is one. It is ASCII without blanks, as its type has checked.
    fn add_text(&mut self, column: &str, text: Option<impl AsRef<str>>);

    /// `column` is true or false, if that is asked for.
    fn add_flag(&mut self, column: &str, flag: Option<bool>);

    /// `column` is a time from the one on and before the other, if they are given.
    fn add_period(&mut self, column: &str, from: Option<Timestamp>, before: Option<Timestamp>);

    /// A condition without a parameter.
    fn add_fixed(&mut self, condition: &str);
}

impl EventFilter {
    /// Adds what is asked of an event.
    pub fn add_to(&self, conditions: &mut impl Conditions) {
        conditions.add_text("event_type", self.event_type.as_ref());
        conditions.add_text("external_id", self.external_id.as_ref());
        conditions.add_text("correlation_id", self.correlation_id.as_ref());
        conditions.add_period("created_at", self.created_after, self.created_before);
    }
}

impl AuditFilter {
    /// Adds what is asked of an audit record, whose table has the alias `a`.
    pub fn add_to(&self, scope: &TenantScope, conditions: &mut impl Conditions) {
        conditions.add_text("a.tenant", scope.tenant());
        conditions.add_text("a.action", self.action.as_ref());
        conditions.add_text("a.target", self.target.as_ref());
        conditions.add_period("a.at", self.created_after, self.created_before);
    }

    /// Whether records of some times are asked for, of all or of a tenant, whatever else they are. Such a list is in the order of these times, which is
    /// that of the ids unless the clock went back.
    pub const fn is_of_times_alone(&self) -> bool {
        let Self { action, target, created_after, created_before } = self;
        let is_timed = created_after.is_some() || created_before.is_some();
        is_timed && action.is_none() && target.is_none()
    }
}

impl DeadLetterFilter {
    /// Adds what is asked of a letter, but for its subscription. Its row in `letter_heads` has the alias `h`.
    pub fn add_to(&self, scope: &TenantScope, conditions: &mut impl Conditions) {
        conditions.add_text("h.tenant", scope.tenant());
        conditions.add_text("h.event_type", self.event_type.as_ref());
        conditions.add_text("h.final_error_code", self.final_error_code.as_ref());
        conditions.add_period("h.created_at", self.created_after, self.created_before);
        conditions.add_flag("h.requeued", self.requeued);
    }
}

impl DeliveryFilter {
    /// Adds what is asked of a delivery's event, whose table has the alias `e`, and of the time at which its saga, `s`, was
    /// created.
    pub fn add_event_to(&self, scope: &TenantScope, conditions: &mut impl Conditions) {
        conditions.add_text("e.tenant", scope.tenant());
        conditions.add_text("e.event_type", self.event_type.as_ref());
        conditions.add_text("e.external_id", self.external_id.as_ref());
        conditions.add_text("e.correlation_id", self.correlation_id.as_ref());
        conditions.add_period("s.created_at", self.created_after, self.created_before);
    }
}

impl SubscriptionFilter {
    /// Adds what is asked of a subscription's own row, but for `active`, of which a back end may have to say that no index is to
    /// be used. Deleted ones are in no list.
    pub fn add_to(&self, conditions: &mut impl Conditions) {
        conditions.add_text("callback_url", self.callback_url.as_ref());
        conditions.add_flag("verified", self.verified);
        conditions.add_flag("(disabled_reason IS NOT NULL)", self.disabled);
        conditions.add_period("disabled_at", self.disabled_after, None);
        conditions.add_fixed("deleted_at IS NULL");
    }
}
