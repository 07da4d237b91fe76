//! The last hour as stacked bars, one per minute, drawn by the server.

use super::parts::{number, plural};
use crate::time::ApiTime;
use hooksaga_saga::Timestamp;
use hooksaga_store::MinuteCount;
use maud::{Markup, html};

const MINUTES: i64 = 60;
const MINUTE: i64 = 60_000_000;

/// In units of the picture, which grows with the page.
const STEP: u64 = 12;
const BAR: u64 = 9;
const HEIGHT: u64 = 120;

/// What ended in the hour before `now`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Hour {
    pub(super) delivered: u64,
    pub(super) failed: u64,
    pub(super) dead_lettered: u64,
}

/// The minutes of the hour that ends with the present one; those in which nothing ended, too.
fn last_hour(minutes: &[MinuteCount], now: Timestamp) -> Vec<MinuteCount> {
    let last = now.as_micros().div_euclid(MINUTE) * MINUTE;
    let first = last - (MINUTES - 1) * MINUTE;
    (0..MINUTES)
        .map(|index| {
            let minute = Timestamp::from_micros(first + index * MINUTE);
            let empty = MinuteCount { minute, delivered: 0, failed: 0, dead_lettered: 0 };
            minutes.iter().find(|count| count.minute == minute).copied().unwrap_or(empty)
        })
        .collect()
}

pub(super) fn sum(minutes: &[MinuteCount], now: Timestamp) -> Hour {
    last_hour(minutes, now).iter().fold(Hour::default(), |sum, minute| Hour {
        delivered: sum.delivered + minute.delivered,
        failed: sum.failed + minute.failed,
        dead_lettered: sum.dead_lettered + minute.dead_lettered,
    })
}

/// The heights of a minute's bars, and of what lies below each. What happened is never invisible.
fn heights(minute: &MinuteCount, most: u64) -> [(u64, u64); 3] {
    let mut below = 0;
    [minute.delivered, minute.failed, minute.dead_lettered].map(|count| {
        let height = if count == 0 { 0 } else { (count * HEIGHT / most.max(1)).max(2) };
        let bar = (height, below);
        below += height;
        bar
    })
}

/// The picture and its legend, which says the same in words.
pub(super) fn bars(minutes: &[MinuteCount], now: Timestamp) -> Markup {
    let hour = last_hour(minutes, now);
    let total = sum(minutes, now);
    let most =
        hour.iter().map(|minute| minute.delivered + minute.failed + minute.dead_lettered).max().unwrap_or(0);
    let width = STEP * u64::try_from(MINUTES).unwrap_or(0);
    let kinds = [
        ("good", "delivered", total.delivered),
        ("warn", "failed attempts", total.failed),
        ("bad", "given up", total.dead_lettered),
    ];
    let label = format!(
        "The last hour: {} delivered, {} failed, {} given up; at most {} in a minute",
        total.delivered,
        plural(total.failed, "attempt", "attempts"),
        total.dead_lettered,
        most
    );
    html! {
        figure.chart {
            @if most > 0 { div.scale aria-hidden="true" { span { (number(most)) " a minute" } } }
            @if most == 0 { p.quiet { "Nothing was sent." } }
            @else { svg role="img" aria-label=(label) viewBox=(format!("0 0 {width} {}", HEIGHT + 8)) preserveAspectRatio="none" {
                @for part in 0..4 { line.grid x1="0" x2=(width) y1=(8 + part * HEIGHT / 4) y2=(8 + part * HEIGHT / 4) {} }
                @for (index, minute) in (0u64..).zip(&hour) {
                    g {
                        title {
                            (time_of(minute.minute)) " · " (number(minute.delivered)) " delivered, "
                            (number(minute.failed)) " failed, " (number(minute.dead_lettered)) " given up"
                        }
                        rect.back x=(index * STEP) y="0" width=(STEP) height=(HEIGHT + 8) {}
                        @for ((height, below), (class, ..)) in heights(minute, most).into_iter().zip(kinds) {
                            @if height > 0 {
                                rect class=(class) x=(index * STEP + 1) y=((HEIGHT + 8).saturating_sub(height + below)) width=(BAR) height=(height) {}
                            }
                        }
                    }
                }
            } }
            div.scale aria-hidden="true" { span { "60 min ago" } span { "45" } span { "30" } span { "15" } span { "now" } }
            figcaption {
                @for (class, name, count) in kinds { span { i class=(class) {} (number(count)) " " (name) } }
            }
        }
    }
}

fn time_of(minute: Timestamp) -> String {
    let civil = ApiTime(minute).civil();
    format!("{:02}:{:02} UTC", civil.hour(), civil.minute())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(minute: i64, delivered: u64) -> MinuteCount {
        MinuteCount {
            minute: Timestamp::from_micros(minute * MINUTE),
            delivered,
            failed: 0,
            dead_lettered: 1,
        }
    }

    #[test]
    fn the_hour_has_sixty_minutes_and_leaves_older_ones_out() {
        let now = Timestamp::from_micros(1000 * MINUTE + 30_000_000);
        let minutes = [count(900, 7), count(941, 5), count(1000, 3)];
        let hour = last_hour(&minutes, now);
        assert_eq!(hour.len(), 60);
        assert_eq!((hour[0].delivered, hour[59].delivered), (5, 3));
        assert_eq!(sum(&minutes, now), Hour { delivered: 8, failed: 0, dead_lettered: 2 });
    }

    #[test]
    fn one_of_a_million_is_still_seen() {
        let [(delivered, _), (failed, _), (dead, below)] = heights(&count(1, 1_000_000), 1_000_001);
        assert_eq!((failed, dead, below), (0, 2, delivered));
        assert!(delivered >= HEIGHT - 1);
    }
}
