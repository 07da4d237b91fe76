//! The alert rules in `deploy/prometheus`: they work, they ask for metrics that exist, and each has its paragraph.

use crate::support::{example, metrics_in, project, text};
use hooksaga_testkit::scratch::ScratchDir;
use std::process::Command;

const RULES: &str = "deploy/prometheus/hooksaga.rules.yml";

#[test]
fn the_rules_fire_when_they_should() {
    for arguments in
        [["check", "rules", RULES], ["test", "rules", "deploy/prometheus/hooksaga.rules.test.yml"]]
    {
        let output = Command::new("promtool")
            .args(arguments)
            .current_dir(project("."))
            .output()
            .expect("promtool runs (Debian's package prometheus; `make tools` installs it)");
        let said = [output.stdout, output.stderr].concat();
        let said = String::from_utf8_lossy(&said);
        assert!(output.status.success() && said.contains("SUCCESS"), "{arguments:?}: {said}");
    }
}

#[test]
fn the_scrape_configuration_of_the_page_is_valid() {
    let folder = ScratchDir::new("prometheus");
    let file = folder.path().join("prometheus.yml");
    let packaged = "/usr/share/doc/hooksaga/deploy/prometheus/hooksaga.rules.yml";
    let block = example("docs/OPERATIONS.md", "scrape-config");
    assert!(block.contains(packaged) && block.contains("job_name: hooksaga\n"), "{block}");
    std::fs::write(&file, block.replace(packaged, project(RULES).to_str().unwrap())).unwrap();
    let checked =
        Command::new("promtool").args(["check", "config"]).arg(&file).output().expect("promtool runs");
    let said = String::from_utf8_lossy(&checked.stdout);
    assert!(checked.status.success(), "{said}{}", String::from_utf8_lossy(&checked.stderr));
    assert!(said.contains("rules found"), "it reads the rules, too: {said}");
}

#[test]
fn every_alert_is_tested_and_has_its_paragraph() {
    let (tests, page) = (text("deploy/prometheus/hooksaga.rules.test.yml"), text("docs/OPERATIONS.md"));
    let rules = text(RULES);
    let alerts: Vec<&str> = rules.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")).collect();
    assert!(alerts.len() >= 10, "{alerts:?}");
    for alert in alerts {
        assert!(tests.contains(&format!("alertname: {alert}\n")), "{alert} has no test");
        assert!(page.contains(&format!("\n### {alert}\n")), "{alert} has no paragraph");
        let link = format!("runbook: docs/OPERATIONS.md#{}\n", alert.to_lowercase());
        assert!(rules.contains(&link), "{alert} does not lead to its paragraph");
    }
}

#[test]
fn rules_and_operators_are_told_of_metrics_that_exist() {
    let documented = text("crates/hooksaga-pipeline/src/metrics/mod.rs");
    let exists = |name: &str| documented.contains(&format!("//! | `{name}`"));
    for page in [RULES, "docs/OPERATIONS.md"] {
        let metrics = metrics_in(&text(page));
        assert!(metrics.len() >= 4, "{metrics:?}");
        for metric in metrics {
            let name = metric.trim_end_matches("_bucket");
            assert!(exists(name) || name == "hooksaga_append", "{metric} in {page} does not exist");
        }
    }
}
