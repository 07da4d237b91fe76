//! `hooksaga bench`: its figures, and what it leaves behind when it is interrupted, which is nothing.

use crate::support::*;
use std::{collections::BTreeSet, fs, net::TcpStream, path::Path};

on_every_back_end! {
    an_interrupted_benchmark_ends_its_server_and_removes_what_it_made,
    redrives_are_measured_until_all_has_arrived,
}

async fn redrives_are_measured_until_all_has_arrived(installation: Installation) {
    let arguments = ["bench", "--scenario", "redrive", "--scenario", "redrive-letters", "--json"];
    let size = ["--waiting", "1000", "--seconds", "1", "--rate", "20"];
    let ended = run(&installation, &[&arguments[..], &size].concat()).await;
    assert_eq!(ended.status.code(), Some(0), "{ended:?}");
    let report: Value = serde_json::from_slice(&ended.stdout).unwrap();
    let figures = report["figures"].as_array().unwrap_or_else(|| panic!("{report}"));
    for what in ["events", "dead letters"] {
        for (figure, least, most) in
            [("created", 1.0, 1e9), ("delivered", 1.0, 1e9), ("delivered more than once", 0.0, 0.0)]
        {
            let name = format!("redrive of 1000 {what}: {figure}");
            let found = figures.iter().find(|shown| shown["name"] == name);
            let value = found.and_then(|shown| shown["value"].as_f64());
            assert!(value.is_some_and(|value| (least..=most).contains(&value)), "{name}: {report}");
        }
    }
}

async fn an_interrupted_benchmark_ends_its_server_and_removes_what_it_made(installation: Installation) {
    // Far more than there is time for.
    leaves_nothing(installation, &["bench", "--events", "10000000"], 1, "INT").await;
}

mod copies {
    use super::*;

    on_every_database_server! {
        a_benchmark_that_is_told_to_end_ends_all_its_servers,
    }

    async fn a_benchmark_that_is_told_to_end_ends_all_its_servers(installation: Installation) {
        let arguments = ["bench", "--scenario", "copies", "--copies", "3", "--events", "1000"];
        leaves_nothing(installation, &arguments, 3, "TERM").await;
    }
}

/// A login that may not create databases.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_benchmark_takes_the_empty_database_that_is_named_and_never_one_with_tables() {
    let url = hooksaga_testkit::postgres::create_database("given", None).await;
    let (server, name) = url.rsplit_once('/').unwrap();
    hooksaga_testkit::postgres::admin_execute(&format!("CREATE ROLE \"{name}\" LOGIN PASSWORD 'x'")).await;
    let address = server.split_once("://").unwrap().1;
    let host = address.rsplit_once('@').map_or(address, |(_, host)| host);
    let own = format!("postgres://{name}:x@{host}/{name}");
    let arguments = ["bench", "--events", "100", "--scenario", "rates", "--database-url", &own];
    let said = |more: &'static [&'static str]| async move {
        let ended = run(&Installation::sqlite(), &[&arguments[..], more].concat()).await;
        // It may not create tables either, so nothing is measured.
        assert_eq!(ended.status.code(), Some(1), "{ended:?}");
        String::from_utf8([ended.stdout, ended.stderr].concat()).unwrap()
    };
    let empty = said(&[]).await;
    assert!(empty.contains("its tables stay there"), "{empty}");

    let (client, connection) = tokio_postgres::connect(&url, tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    client.batch_execute("CREATE TABLE events ()").await.unwrap();
    let full = said(&[]).await;
    assert!(!full.contains("its tables stay there"), "{full}");
    let given = said(&["--given"]).await;
    assert!(given.contains("has tables already"), "{given}");
}

/// Ends a benchmark once this many of its servers listen at a time, and checks what is left of it.
async fn leaves_nothing(installation: Installation, arguments: &[&str], at_a_time: usize, signal: &str) {
    let folder = installation.folder.path().join("scratch");
    fs::create_dir(&folder).unwrap();
    let installation = installation.with("TMPDIR", folder.to_str().unwrap());
    let url = installation.database_url().map(ToOwned::to_owned);
    let bench = Process::start(&installation, arguments).await;
    let (name, servers) = eventually("its servers listen", || async {
        let (name, servers) = listening_in(&folder)?;
        (servers.len() >= at_a_time).then_some((name, servers))
    })
    .await;

    let (code, said) = bench.end_with(signal).await;
    assert_eq!(code, Some(1), "{said:?}");
    for server in &servers {
        // It was killed; the kernel closes its socket a moment later.
        eventually("the server is gone", || async { TcpStream::connect(server).err() }).await;
    }
    assert_eq!(fs::read_dir(&folder).unwrap().count(), 0, "the scratch folder is removed");
    // Creating it succeeds only if it is not there.
    match url.as_deref() {
        Some(url) if url.starts_with("postgres") => {
            hooksaga_testkit::postgres::admin_execute(&format!(r#"CREATE DATABASE "{name}""#)).await;
            hooksaga_testkit::postgres::admin_execute(&format!(r#"DROP DATABASE "{name}""#)).await;
        }
        Some(_) => {
            hooksaga_testkit::mariadb::admin_execute(&format!("CREATE DATABASE {name}")).await;
            hooksaga_testkit::mariadb::admin_execute(&format!("DROP DATABASE {name}")).await;
        }
        None => {}
    }
}

/// The name of the only scratch folder, and where the servers that log into it listen, as far as they still do.
fn listening_in(folder: &Path) -> Option<(String, BTreeSet<String>)> {
    let scratch = fs::read_dir(folder).ok()?.next()?.ok()?;
    let logs =
        fs::read_dir(scratch.path()).ok()?.flatten().filter_map(|file| fs::read_to_string(file.path()).ok());
    let lines = logs.flat_map(|log| log.lines().map(ToOwned::to_owned).collect::<Vec<_>>());
    let addresses = lines.filter_map(|line| {
        let record: Value = serde_json::from_str(&line).ok()?;
        Some(record["message"].as_str()?.strip_prefix("listening on http://")?.trim().to_owned())
    });
    let listening = addresses.filter(|address| TcpStream::connect(address).is_ok()).collect();
    Some((scratch.file_name().into_string().ok()?, listening))
}

/// Tiny numbers: what the figures are is of no interest, but that they are there, and what they are held against.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tiny_benchmark_has_all_its_figures() {
    let scenarios = ["rates", "copies", "payloads", "limited", "redrive"];
    let mut arguments =
        vec!["bench", "--json", "--rates", "100,300", "--rate-seconds", "1", "--seconds", "1"];
    arguments.extend(["--sizes", "1000,102400", "--events", "200", "--waiting", "3000"]);
    arguments.extend(scenarios.iter().flat_map(|scenario| ["--scenario", scenario]));
    let ended = run(&Installation::sqlite(), &arguments).await;
    assert_eq!(ended.status.code(), Some(0), "{ended:?}");
    let report: Value = serde_json::from_slice(&ended.stdout).unwrap();
    assert_eq!((&report["database"], &report["failures"]), (&json!("SQLite"), &json!([])));
    let figure = |name: &str| {
        let found = report["figures"].as_array().unwrap().iter().find(|figure| figure["name"] == name);
        found.unwrap_or_else(|| panic!("{name:?} is not in {report:#}")).clone()
    };
    let value = |name: &str| figure(name)["value"].as_f64().unwrap();

    for rate in [100, 300] {
        assert!(value(&format!("{rate}/s: delivered")) > 0.0);
        assert!(value(&format!("{rate}/s: CPU per delivery")) > 0.0);
        // A few on a quiet machine. On a busy one deliveries share them.
        assert!(value(&format!("{rate}/s: commits per delivery")) > 0.05);
        assert!(value(&format!("{rate}/s: p99")) >= value(&format!("{rate}/s: p50")));
    }
    // A goal at the rate that has one; no bar that would fail.
    let (light, other) = (figure("300/s: CPU per delivery"), figure("100/s: CPU per delivery"));
    assert_eq!((&light["goal"], &light["bar"]), (&json!({"at_most": 0.4}), &Value::Null));
    assert_eq!(other["goal"], Value::Null);
    assert_eq!(figure("payloads of 100 KiB: delivered")["goal"], json!({"at_least": 3000.0}));
    assert!(value("payloads of 1 KB: delivered") > 0.0);
    assert_eq!(figure("limit of 500/s: off its rate")["bar"], json!({"at_most": 2.0}));
    assert!(value("redrive of 3000 events: delivered") > 0.0);
    for scenario in ["rates", "payloads", "limited", "redrive of 3000 events"] {
        assert!(value(&format!("{scenario}: delivered more than once")) < 0.5);
    }
    let others = value("CPU used by other processes, whole run");
    assert!((0.0..=100.0).contains(&others), "{others}");
}
