//! Figures that take long to count where there is much. Whoever asks starts a count that is due, waits a moment for it, and
//! else gets the previous figures with their age. However many ask, there is one count at a time, and after it a rest of
//! [`REST`] times as long as it took: counting never takes more than a tenth of one connection's time, and where there is
//! little to count the figures are of this second.

use hooksaga_store::{StoreError, StoreResult};
use std::{sync::Arc, time::Duration};
use tokio::{
    sync::watch,
    time::{Instant, timeout},
};

/// The shortest rest, and the one after a count that failed at once.
const FRESH: Duration = Duration::from_secs(1);
const REST: u32 = 10;
const LONGEST_REST: Duration = Duration::from_secs(30);

/// Figures that are older say too little about the present. While somebody asks there are none: a count ends after
/// [`QUERY_LIMIT`](hooksaga_store::QUERY_LIMIT), and the next begins after [`LONGEST_REST`].
const KEPT: Duration = Duration::from_secs(60);

/// A count without a result for this long has failed, whatever the database does: one waits for its turn, and then makes two
/// queries, each of which may take [`QUERY_LIMIT`](hooksaga_store::QUERY_LIMIT).
const LONGEST_COUNT: Duration = Duration::from_secs(20);

/// How long somebody waits for a count.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Patience {
    /// If there are previous figures.
    pub(crate) for_newer: Duration,
    /// If there are none.
    pub(crate) for_any: Duration,
}

/// What was counted, and when.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Figures<T> {
    pub(crate) value: T,
    counted: Instant,
}

impl<T> Figures<T> {
    pub(crate) fn age(&self) -> Duration {
        self.counted.elapsed()
    }

    pub(crate) fn map<U>(self, change: impl FnOnce(T) -> U) -> Figures<U> {
        Figures { value: change(self.value), counted: self.counted }
    }
}

/// What is known at present.
#[derive(Clone, Debug)]
pub(crate) enum Known<T> {
    Figures(Figures<T>),
    Failed(Arc<StoreError>),
    /// The first count since long is still going on.
    Counting,
}

impl<T> Known<T> {
    pub(crate) fn map<U>(self, change: impl FnOnce(T) -> U) -> Known<U> {
        match self {
            Self::Figures(figures) => Known::Figures(figures.map(change)),
            Self::Failed(error) => Known::Failed(error),
            Self::Counting => Known::Counting,
        }
    }

    /// The figures, for those who can do nothing without them.
    pub(crate) fn figures(self) -> Result<Figures<T>, Arc<StoreError>> {
        match self {
            Self::Figures(figures) => Ok(figures),
            Self::Failed(error) => Err(error),
            Self::Counting => Err(Arc::new(StoreError::TooSlow("still counting".to_owned()))),
        }
    }
}

pub(crate) struct Refreshed<T>(watch::Sender<State<T>>);

struct State<T> {
    counting: bool,
    rests_until: Option<Instant>,
    figures: Option<Figures<T>>,
    /// Why the last count failed, if it did.
    failure: Option<Arc<StoreError>>,
}

impl<T: Copy + Send + Sync + 'static> Refreshed<T> {
    pub(crate) fn new() -> Self {
        Self(watch::Sender::new(State { counting: false, rests_until: None, figures: None, failure: None }))
    }

    /// What is known once `patience` is over, or as soon as there are figures that are as new as they get.
    pub(crate) async fn get(
        &self,
        patience: Patience,
        count: impl Future<Output = StoreResult<T>> + Send + 'static,
    ) -> Known<T> {
        if self.0.send_if_modified(State::begin) {
            tokio::spawn(note(self.0.clone(), count));
        }
        let mut state = self.0.subscribe();
        let wait = match state.borrow().current() {
            Some(_) => patience.for_newer,
            None => patience.for_any,
        };
        drop(timeout(wait, state.wait_for(|state| !state.counting)).await);
        state.borrow().known()
    }
}

/// Counts, in a task of its own: those who asked may go.
async fn note<T: Send + Sync + 'static>(
    state: watch::Sender<State<T>>,
    count: impl Future<Output = StoreResult<T>> + Send + 'static,
) {
    let began = Instant::now();
    let counted = tokio::spawn(timeout(LONGEST_COUNT, count)).await;
    let counted = match counted {
        Ok(Ok(counted)) => counted,
        Ok(Err(_)) => Err(StoreError::Unavailable("no response in time".to_owned())),
        Err(_) => Err(StoreError::Unavailable("the count ended early".to_owned())),
    };
    state.send_modify(|state| state.end(began, counted));
}

impl<T> State<T> {
    /// Whether a count is to begin now.
    fn begin(&mut self) -> bool {
        let is_due = !self.counting && self.rests_until.is_none_or(|until| until <= Instant::now());
        if is_due {
            self.counting = true;
            // That one took too long is true until another does not.
            self.failure.take_if(|error| !is_slow(error));
        }
        is_due
    }

    fn end(&mut self, began: Instant, counted: StoreResult<T>) {
        self.counting = false;
        let mut rest = (REST * began.elapsed()).clamp(FRESH, LONGEST_REST);
        match counted {
            Ok(value) => {
                self.figures = Some(Figures { value, counted: began });
                self.failure = None;
            }
            Err(error) => {
                if !is_slow(&error) {
                    // Nobody knows what is the case now; and once the database is back, nobody should wait.
                    self.figures = None;
                    rest = FRESH;
                }
                self.failure = Some(Arc::new(error));
            }
        }
        self.rests_until = Some(Instant::now() + rest);
    }

    fn current(&self) -> Option<&Figures<T>> {
        self.figures.as_ref().filter(|figures| figures.age() <= KEPT)
    }
}

impl<T: Copy> State<T> {
    fn known(&self) -> Known<T> {
        match (self.current(), &self.failure) {
            (Some(figures), _) => Known::Figures(*figures),
            (None, Some(error)) => Known::Failed(Arc::clone(error)),
            (None, None) => Known::Counting,
        }
    }
}

/// The database is there, and the count alone took too long.
fn is_slow(error: &StoreError) -> bool {
    matches!(error, StoreError::TooSlow(_) | StoreError::TimedOut(_))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::time::sleep;

    const PATIENCE: Patience =
        Patience { for_newer: Duration::from_millis(50), for_any: Duration::from_secs(3) };

    /// Asks; a count that is begun returns this, after so many milliseconds.
    async fn ask(
        counted: &Refreshed<u32>,
        milliseconds: u64,
        returned: StoreResult<u32>,
    ) -> Result<(u32, u128), String> {
        let count = async move {
            sleep(Duration::from_millis(milliseconds)).await;
            returned
        };
        match counted.get(PATIENCE, count).await {
            Known::Figures(figures) => Ok((figures.value, figures.age().as_millis())),
            Known::Failed(error) => Err(error.to_string()),
            Known::Counting => Err("counting".to_owned()),
        }
    }

    fn slow() -> StoreError {
        StoreError::TooSlow("much".to_owned())
    }

    fn away() -> StoreError {
        StoreError::Unavailable("gone".to_owned())
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_quick_is_counted_again_after_a_second() {
        let counted = Refreshed::new();
        assert_eq!(ask(&counted, 2, Ok(1)).await, Ok((1, 2)));
        sleep(Duration::from_millis(999)).await;
        assert_eq!(ask(&counted, 2, Ok(2)).await, Ok((1, 1001)));
        sleep(Duration::from_millis(1)).await;
        assert_eq!(ask(&counted, 2, Ok(2)).await, Ok((2, 2)));
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_slow_is_counted_beside_those_who_ask_and_rests_ten_times_as_long() {
        let counted = Refreshed::new();
        assert_eq!(ask(&counted, 300, Ok(1)).await, Ok((1, 300)), "there is nothing yet: it is waited for");
        sleep(Duration::from_millis(2999)).await;
        assert_eq!(ask(&counted, 300, Ok(0)).await, Ok((1, 3299)), "it rests");
        sleep(Duration::from_millis(1)).await;
        assert_eq!(ask(&counted, 300, Ok(2)).await, Ok((1, 3350)), "50 ms for newer figures");
        assert_eq!(ask(&counted, 300, Ok(3)).await, Ok((1, 3400)), "one at a time");
        sleep(Duration::from_millis(200)).await;
        assert_eq!(ask(&counted, 300, Ok(4)).await, Ok((2, 300)));
    }

    #[tokio::test(start_paused = true)]
    async fn first_figures_that_take_longer_than_somebody_waits_are_there_later() {
        let counted = Refreshed::new();
        assert_eq!(ask(&counted, 4000, Ok(1)).await, Err("counting".to_owned()));
        sleep(Duration::from_secs(1)).await;
        assert_eq!(ask(&counted, 0, Ok(2)).await, Ok((1, 4000)));
        sleep(Duration::from_secs(29)).await;
        assert_eq!(ask(&counted, 4000, Ok(2)).await, Ok((1, 33_000)), "no rest is longer than 30 s");
        sleep(Duration::from_secs(1)).await;
        assert_eq!(ask(&counted, 4000, Ok(2)).await, Ok((1, 34_050)));
    }

    #[tokio::test(start_paused = true)]
    async fn figures_of_long_ago_are_not_shown() {
        let counted = Refreshed::new();
        assert_eq!(ask(&counted, 100, Ok(1)).await, Ok((1, 100)));
        sleep(Duration::from_secs(60)).await;
        assert_eq!(ask(&counted, 4000, Ok(2)).await, Err("counting".to_owned()));
    }

    #[tokio::test(start_paused = true)]
    async fn a_count_that_takes_too_long_is_tried_again_and_leaves_the_previous_figures() {
        let counted = Refreshed::new();
        assert_eq!(ask(&counted, 100, Ok(1)).await, Ok((1, 100)));
        sleep(Duration::from_secs(2)).await;
        assert_eq!(ask(&counted, 5000, Err(slow())).await, Ok((1, 2150)));
        sleep(Duration::from_secs(10)).await;
        assert_eq!(ask(&counted, 5000, Err(slow())).await, Ok((1, 12_150)), "it rests");
        sleep(Duration::from_secs(48)).await;
        let told = Err(slow().to_string());
        assert_eq!(ask(&counted, 5000, Err(slow())).await, told, "also while it is tried again");
        sleep(Duration::from_secs(5)).await;
        assert_eq!(ask(&counted, 1, Ok(2)).await, told);
        sleep(Duration::from_secs(30)).await;
        assert_eq!(ask(&counted, 1, Ok(2)).await, Ok((2, 1)));
    }

    #[tokio::test(start_paused = true)]
    async fn a_database_that_is_away_leaves_no_figures_and_is_asked_again_at_once_when_it_is_back() {
        let counted = Refreshed::new();
        assert_eq!(ask(&counted, 1, Ok(1)).await, Ok((1, 1)));
        sleep(Duration::from_secs(2)).await;
        assert_eq!(ask(&counted, 20, Err(away())).await, Err(away().to_string()));
        assert_eq!(ask(&counted, 1, Ok(2)).await, Err(away().to_string()), "once a second");
        sleep(Duration::from_secs(1)).await;
        assert_eq!(ask(&counted, 1, Ok(2)).await, Ok((2, 1)));
        sleep(Duration::from_secs(2)).await;
        assert_eq!(ask(&counted, 21_000, Ok(3)).await, Ok((2, 2051)));
        sleep(Duration::from_secs(20)).await;
        assert_eq!(
            ask(&counted, 1, Ok(3)).await,
            Err(StoreError::Unavailable("no response in time".to_owned()).to_string())
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_count_that_panics_is_none_and_one_whose_asker_has_gone_is_stored() {
        let counted = Refreshed::<u32>::new();
        let known = counted.get(PATIENCE, async { std::hint::black_box(None).expect("a bug") }).await;
        assert!(matches!(known, Known::Failed(_)), "{known:?}");
        sleep(Duration::from_secs(1)).await;
        let gone = ask(&counted, 20, Ok(1));
        assert!(timeout(Duration::from_millis(10), gone).await.is_err(), "it waits");
        assert_eq!(ask(&counted, 1, Ok(2)).await, Ok((1, 20)));
    }
}
