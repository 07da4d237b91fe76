//! What is in `deploy`: the chart renders, the compose files are whole, and the board asks for metrics that exist.

use crate::support::{example, metrics_in, project, text, tool};
use hooksaga_testkit::scratch::ScratchDir;
use serde_json::{Value, json};
use std::{
    collections::BTreeSet,
    path::PathBuf,
    process::{Command, Stdio},
};

/// The program, or the one that `make tools` puts into the cache of the tests.
fn helm_program() -> PathBuf {
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let home = std::env::var_os("HOME").map(PathBuf::from).unwrap_or_default();
    let cached = cache.unwrap_or_else(|| home.join(".cache")).join("hooksaga-tests/helm");
    if cached.exists() { cached } else { PathBuf::from("helm") }
}

fn helm(arguments: &[&str]) -> String {
    let output = Command::new(helm_program())
        .args(arguments)
        .current_dir(project("deploy/helm"))
        .stdin(Stdio::null())
        .output()
        .expect("helm runs (`make tools` installs it)");
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{arguments:?}: {out}{err}");
    out.into_owned()
}

/// The documents of a rendered chart, by kind.
fn kinds(rendered: &str) -> Vec<&str> {
    let mut kinds: Vec<&str> = rendered.lines().filter_map(|line| line.strip_prefix("kind: ")).collect();
    kinds.sort_unstable();
    kinds
}

#[test]
fn the_chart_renders_for_both_kinds_of_databases() {
    helm(&["lint", "--strict", "hooksaga"]);
    let embedded = helm(&["template", "one", "hooksaga"]);
    assert_eq!(kinds(&embedded), ["Service", "StatefulSet"], "{embedded}");
    for word in ["replicas: 1\n", "sqlite:///data/hooksaga.db", "mountPath: /data", "ReadWriteOncePod"] {
        assert!(embedded.contains(word), "{word} in {embedded}");
    }
    let options = [
        "--set",
        "database.secret=keys,replicas=3,serviceMonitor=true,config.HOOKSAGA_RETENTION_FINISHED=30d",
    ];
    let server = helm(&[&["template", "many", "hooksaga"][..], &options].concat());
    assert_eq!(
        kinds(&server),
        ["Deployment", "Job", "PodDisruptionBudget", "Service", "ServiceMonitor"],
        "{server}"
    );
    for word in
        ["replicas: 3\n", "secretName: keys", "HOOKSAGA_SECRET_KEY_FILE", "args: [migrate]", "pre-upgrade"]
    {
        assert!(server.contains(word), "{word} in {server}");
    }
    for rendered in [&embedded, &server] {
        for word in ["readOnlyRootFilesystem: true", "runAsNonRoot: true", "path: /readyz", "path: /healthz"]
        {
            assert!(rendered.contains(word), "{word} in {rendered}");
        }
        // The other port speaks HTTPS once it has a certificate, which a probe would have to know.
        assert_eq!(rendered.matches("z, port: metrics}").count(), 3, "{rendered}");
        // Else Kubernetes makes variables of the Service's name, which hooksaga refuses as unknown settings.
        let pods = rendered.matches("containers:").count();
        assert_eq!(rendered.matches("enableServiceLinks: false").count(), pods, "{rendered}");
    }
}

/// A YAML file, as JSON.
fn yaml(path: &str) -> Value {
    let read = "import json, sys, yaml; print(json.dumps(yaml.safe_load(open(sys.argv[1]))))";
    let output = Command::new(tool("python").join("bin/python"))
        .args(["-c", read])
        .arg(project(path))
        .output()
        .expect("Python runs (`make tools` installs it)");
    assert!(output.status.success(), "{path}: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("JSON")
}

#[test]
fn the_compose_files_are_yaml_publish_a_port_and_use_only_what_the_image_has() {
    for path in ["deploy/compose/embedded.yml", "deploy/compose/postgres.yml"] {
        let file = yaml(path);
        let service = &file["services"]["hooksaga"];
        // The image has no shell: a check that is one text would be run by it.
        let check = json!(["CMD", "/usr/bin/hooksaga", "serve", "--check-ready"]);
        assert_eq!(service["healthcheck"]["test"], check, "{path}");
        let copies = service["deploy"]["replicas"].as_u64().unwrap_or(1);
        let port = service["ports"][0].as_str().unwrap_or_else(|| panic!("{path} publishes no port"));
        let published = port.strip_prefix("127.0.0.1:").and_then(|port| port.strip_suffix(":8080")).unwrap();
        let (first, last) = published.split_once('-').unwrap_or((published, published));
        let number = last.parse::<u64>().unwrap() - first.parse::<u64>().unwrap() + 1;
        assert_eq!(number, copies, "a port for each copy: {port} in {path}");
        // What a service names exists.
        let services = file["services"].as_object().unwrap();
        for service in services.values() {
            let secrets = service["secrets"].as_array().into_iter().flatten();
            assert!(
                secrets.clone().all(|name| file["secrets"][name.as_str().unwrap()].is_object()),
                "{path}"
            );
            let others = service["depends_on"].as_object().into_iter().flatten();
            assert!(others.clone().all(|(name, _)| services.contains_key(name)), "{path}");
        }
        for program in text(path).split(" exec hooksaga ").skip(1) {
            assert!(program.starts_with("hooksaga "), "the image has no other program: {program}");
        }
    }
}

/// Without a cluster: what would be installed is rendered, and kubectl is not there.
#[test]
fn the_commands_of_the_charts_readme_render_it() {
    let commands = format!(
        "set -e; kubectl() {{ :; }}; helm() {{ '{}' template \"${{@:2}}\"; }}\n",
        helm_program().display()
    );
    for (name, kind) in [("helm-embedded", "StatefulSet"), ("helm-server", "Deployment")] {
        let block = example("deploy/helm/README.md", name);
        assert!(block.contains("helm install "), "{block}");
        let script = format!("{commands}{block}");
        let output =
            Command::new("/bin/bash").args(["-c", &script]).current_dir(project("")).output().unwrap();
        let rendered = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
        assert!(kinds(&rendered).contains(&kind), "{name}: {rendered}");
    }
}

/// systemd gives up after five starts in ten seconds, unless it is told otherwise.
#[test]
fn the_unit_is_started_until_its_database_is_there() {
    let unit = text("deploy/systemd/hooksaga.service");
    let (head, service) = unit.split_once("\n[Service]\n").expect("both sections");
    assert!(head.lines().any(|line| line == "StartLimitIntervalSec=0"), "{head}");
    for setting in ["Restart=on-failure", "RestartSec=2s"] {
        assert!(service.lines().any(|line| line == setting), "{setting} in {service}");
    }
}

#[test]
fn settings_that_files_in_deploy_name_exist() {
    let documented = text("docs/CONFIGURATION.md");
    let files = ["helm/hooksaga/templates/_helpers.tpl", "compose/embedded.yml", "compose/postgres.yml"];
    for file in files.map(|file| format!("deploy/{file}")) {
        let content = text(&file);
        let words = content.split(|c: char| !c.is_ascii_uppercase() && c != '_');
        let variables: BTreeSet<&str> = words.filter(|word| word.starts_with("HOOKSAGA_")).collect();
        assert!(variables.len() >= 3, "{file}: {variables:?}");
        for variable in variables {
            let direct = variable.trim_end_matches("_FILE");
            assert!(documented.contains(direct), "{variable} in {file} is not in docs/CONFIGURATION.md");
        }
    }
}

#[test]
fn the_board_asks_for_metrics_that_exist_and_is_whole() {
    let board: Value = serde_json::from_str(&text("deploy/grafana/hooksaga.json")).expect("valid JSON");
    let documented = text("crates/hooksaga-pipeline/src/metrics/mod.rs");
    let panels = board["panels"].as_array().unwrap();
    assert!(panels.len() >= 20);
    let mut shown = BTreeSet::new();
    // Every query as a rule, so that promtool says whether it is PromQL.
    let mut rules = "groups:\n- name: board\n  rules:\n".to_owned();
    for panel in panels {
        for target in panel["targets"].as_array().unwrap() {
            let query = target["expr"].as_str().unwrap();
            let metrics = metrics_in(query);
            assert!(!metrics.is_empty(), "{query}");
            for metric in metrics {
                let name = metric.trim_end_matches("_bucket");
                assert!(documented.contains(&format!("//! | `{name}`")), "{metric} does not exist: {query}");
                shown.insert(name.to_owned());
            }
            let query = query.replace("$__rate_interval", "5m").replace("$job", ".*");
            let name = format!("board:query:{}", rules.lines().count());
            rules.push_str(&format!("  - record: {name}\n    expr: {}\n", json!(query)));
        }
    }
    for metric in
        ["hooksaga_oldest_due_seconds", "hooksaga_database_connections_busy", "hooksaga_subscriptions"]
    {
        assert!(shown.contains(metric), "{metric} is not on the board");
    }
    let folder = ScratchDir::new("board");
    let file = folder.path().join("board.yml");
    std::fs::write(&file, rules).unwrap();
    let checked =
        Command::new("promtool").args(["check", "rules"]).arg(&file).output().expect("promtool runs");
    assert!(checked.status.success(), "{}", String::from_utf8_lossy(&checked.stderr));
}
