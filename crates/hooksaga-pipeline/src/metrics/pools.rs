//! The connections to the database server.

use hooksaga_store::PoolUse;
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric},
    metrics::{MetricType, gauge::ConstGauge},
};

pub(super) struct PoolCollector(pub(super) Box<dyn Fn() -> Vec<PoolUse> + Send + Sync>);

impl std::fmt::Debug for PoolCollector {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("PoolCollector")
    }
}

impl Collector for PoolCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let pools = (self.0)();
        let value = |most: bool, pool: &PoolUse| if most { pool.most } else { pool.busy };
        for (name, help, most) in [
            ("database_connections", "Connections to the database server that may be open, by role", true),
            ("database_connections_busy", "Connections to the database server in use, by role", false),
        ] {
            let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            for pool in &pools {
                let gauge = ConstGauge::new(i64::try_from(value(most, pool)).unwrap_or(i64::MAX));
                gauge.encode(family.encode_family(&[("role", pool.role.as_str())])?)?;
            }
        }
        Ok(())
    }
}
