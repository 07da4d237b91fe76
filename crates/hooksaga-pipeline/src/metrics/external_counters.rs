//! Counters whose values are kept by another part of the program.

use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric},
    metrics::counter::ConstCounter,
};

/// A number that another part of the program counts.
pub(super) struct Counted {
    pub(super) name: &'static str,
    pub(super) help: &'static str,
    pub(super) number: Box<dyn Fn() -> u64 + Send + Sync>,
}

impl std::fmt::Debug for Counted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Counted").field(&self.name).finish()
    }
}

impl Collector for Counted {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let counter = ConstCounter::new((self.number)());
        counter.encode(encoder.encode_descriptor(self.name, self.help, None, counter.metric_type())?)
    }
}
