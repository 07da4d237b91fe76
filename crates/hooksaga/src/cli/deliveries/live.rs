//! Deliveries as they happen: what has changed since the last look, as one line each.

use super::target;
use crate::{
    cli::remote::{ApiDelivery, explain},
    output::{Color, Now, clean_line},
};

/// As much of a delivery as tells whether something happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::cli) struct Seen {
    attempts: u32,
    held: bool,
    pub(in crate::cli) ended: bool,
}

impl Seen {
    /// One that nothing has happened to.
    pub(in crate::cli) const NEW: Self = Self { attempts: 0, held: false, ended: false };

    pub(in crate::cli) fn of(delivery: &ApiDelivery) -> Self {
        Self { attempts: delivery.attempt_count, held: delivery.held, ended: delivery.has_ended() }
    }

    /// Whether there is something to tell: an attempt has ended, or it is held back.
    pub(in crate::cli) fn is_news_after(self, before: Self) -> bool {
        self.attempts > before.attempts || (self.ended && !before.ended) || (self.held && !before.held)
    }
}

/// What happened to a delivery, as one line, and what it means.
pub(in crate::cli) fn line(delivery: &ApiDelivery, now: Now) -> (Color, String) {
    let failure = || delivery.final_error_code.as_deref().map(explain).unwrap_or_default();
    let (attempts, most) = (delivery.attempt_count, delivery.max_retry_limit);
    let (color, what, more) = match delivery.status.as_str() {
        "Completed" => (Color::Good, "delivered", format!("attempt {attempts}")),
        "DeadLettered" => (Color::Bad, "given up", format!("attempt {attempts} of {most}: {}", failure())),
        _ if delivery.held => {
            (Color::Open, "held", "until its subscription is active and verified".to_owned())
        }
        _ => {
            let next = now.relative(&delivery.next_attempt_at);
            let next = if next.ends_with("ago") { "now".to_owned() } else { next };
            (Color::Open, "failed", format!("attempt {attempts} of {most}: {}; again {next}", failure()))
        }
    };
    let line = format!(
        "{what:<9}  evt_{:<6}  {}  -> {}  {more}  (delivery {})",
        delivery.event_id,
        delivery.event_type,
        target(delivery),
        delivery.saga_id
    );
    (color, clean_line(&line))
}

/// Whether an attempt failed, or it was given up.
pub(in crate::cli) fn is_failure(delivery: &ApiDelivery) -> bool {
    delivery.status != "Completed" && delivery.attempt_count > 0
}

#[cfg(test)]
mod tests {
    use super::{super::tests::delivery, *};

    #[test]
    fn news_are_ended_attempts_and_being_held() {
        let seen = |status, attempts| Seen::of(&delivery(1, status, attempts));
        let fresh = Seen::NEW;
        assert!(!seen("Pending", 0).is_news_after(fresh) && !seen("InProgress", 0).is_news_after(fresh));
        assert!(seen("PendingRetry", 1).is_news_after(fresh));
        assert!(!seen("InProgress", 1).is_news_after(seen("PendingRetry", 1)));
        assert!(seen("Completed", 2).is_news_after(seen("InProgress", 1)));
        assert!(!seen("Completed", 2).is_news_after(seen("Completed", 2)));
        let held = Seen { held: true, ..fresh };
        assert!(held.is_news_after(fresh) && !fresh.is_news_after(held));
    }

    #[test]
    fn a_line_says_what_happened_and_what_comes() {
        let now = Now::at("2026-01-31T12:05:00Z");
        let say = |status, attempts| line(&delivery(21, status, attempts), now);
        let (color, text) = say("Completed", 2);
        assert_eq!(
            (color, text.as_str()),
            (
                Color::Good,
                "delivered  evt_17      order.created  -> https://x/h (3)  attempt 2  (delivery 21)"
            )
        );
        let (_, failed) = say("PendingRetry", 1);
        assert!(
            failed.contains("attempt 1 of 5: HTTP_503: ") && failed.contains("; again in 30s"),
            "{failed}"
        );
        assert!(say("DeadLettered", 5).1.starts_with("given up"));
        let held = ApiDelivery { held: true, ..delivery(21, "Pending", 0) };
        assert!(line(&held, now).1.starts_with("held"));
        assert!(is_failure(&delivery(1, "InProgress", 1)) && !is_failure(&delivery(1, "Completed", 2)));
    }
}
