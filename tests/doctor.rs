//! `hooksaga doctor`: says that what is well is well, and finds each thing that was broken.

use crate::support::*;
use hooksaga_store::Role;
use hooksaga_testkit::{mariadb, proxy::Proxy};
use std::{fs, os::unix::fs::PermissionsExt, process::Stdio, time::Instant};

/// What the doctor said, and how it ended.
struct Report {
    code: Option<i32>,
    stderr: String,
    report: Value,
}

impl Report {
    async fn of(installation: &Installation) -> Self {
        let output = run(installation, &["doctor", "--json"]).await;
        let stdout = String::from_utf8(output.stdout).unwrap();
        let report = serde_json::from_str(&stdout).unwrap_or_else(|_| panic!("JSON: {stdout}"));
        Self { code: output.status.code(), stderr: String::from_utf8(output.stderr).unwrap(), report }
    }

    /// The findings of one check.
    fn all(&self, check: &str) -> Vec<&Value> {
        let checks = self.report["checks"].as_array().unwrap();
        checks.iter().filter(|found| found["check"] == check).collect()
    }

    /// Panics unless this check has this verdict, with all these words.
    #[track_caller]
    fn says(&self, check: &str, verdict: &str, words: &[&str]) {
        let found = self.all(check);
        let fits = |found: &&&Value| {
            let text = format!("{} {}", found["found"], found["do"]);
            found["verdict"] == verdict && words.iter().all(|word| text.contains(word))
        };
        assert!(
            found.iter().any(|it| fits(&it)),
            "{check} is not {verdict} with {words:?}: {:#}",
            self.report
        );
        let advised = |found: &&Value| found["verdict"] == "ok" || found["do"].is_string();
        assert!(found.iter().all(advised), "what is to be done? {found:?}");
    }

    #[track_caller]
    fn ends_with(&self, code: i32) {
        assert_eq!(self.code, Some(code), "{:#}", self.report);
        let problems = self.report["problems"].as_u64().unwrap();
        assert_eq!(problems > 0, code == 1, "{:#}", self.report);
        assert_eq!(self.stderr.lines().count(), usize::from(code == 1), "{}", self.stderr);
    }
}

#[tokio::test]
async fn an_embedded_installation_is_well_before_and_while_it_runs() {
    let installation = Installation::sqlite();
    let before = Report::of(&installation).await;
    before.ends_with(0);
    before.says("schema", "ok", &["none yet"]);
    before.says("data folder", "ok", &["not there yet"]);
    before.says("retention", "ok", &["plan about"]);
    assert!(!installation.folder.path().join("hooksaga-data").exists(), "nothing was created");

    let server = Server::start(&installation, &["serve"]).await;
    eventually("the worker is seen", || async {
        (!Report::of(&installation).await.report["workers"].as_array()?.is_empty()).then_some(())
    })
    .await;
    let running = Report::of(&installation).await;
    running.ends_with(0);
    for check in ["configuration", "database", "schema", "roles", "workers", "backlog"] {
        running.says(check, "ok", &[]);
    }
    running.says("signing key", "ok", &["secret.key opens every stored signing secret"]);
    running.says("clock", "untried", &["not tried", "NTP"]);
    for check in ["database TLS", "lease", "data folder", "disk", "open files"] {
        assert!(!running.all(check).is_empty(), "{check} was not looked at: {:#}", running.report);
    }
    assert_eq!(running.report["workers"][0]["slots"], 512);
    let text = run(&installation, &["doctor"]).await;
    let text = String::from_utf8(text.stdout).unwrap();
    assert!(text.contains("ok       schema") && text.contains("WORKER") && text.contains("512"), "{text}");
    assert_eq!(server.terminate().await, Some(0));
    Report::of(&installation).await.says("workers", "warning", &["none is alive", "hooksaga serve"]);
}

#[tokio::test]
async fn an_embedded_database_that_was_only_migrated_is_well() {
    let installation = Installation::sqlite();
    assert!(run(&installation, &["migrate"]).await.status.success());
    let report = Report::of(&installation).await;
    report.ends_with(0);
    report.says("signing key", "ok", &["not there yet", "hooksaga serve"]);
    assert!(!installation.folder.path().join("hooksaga-data/secret.key").exists(), "nothing was created");
}

#[tokio::test]
async fn each_thing_that_is_broken_on_an_embedded_installation_is_found() {
    let installation = Installation::sqlite();
    let server = Server::start(&installation, &["serve"]).await;
    let subscription = json!({"event_type": "t", "callback_url": "https://shop.example/hooks"});
    server.api().post("/v1/subscriptions", &subscription).await.expect(201);
    assert_eq!(server.terminate().await, Some(0));
    let data = installation.folder.path().join("hooksaga-data");

    fs::set_permissions(&data, fs::Permissions::from_mode(0o755)).unwrap();
    Report::of(&installation).await.says("data folder", "warning", &["chmod go= "]);
    fs::set_permissions(&data, fs::Permissions::from_mode(0o700)).unwrap();

    let key = fs::read(data.join("secret.key")).unwrap();
    fs::remove_file(data.join("secret.key")).unwrap();
    let lost = Report::of(&installation).await;
    lost.ends_with(1);
    lost.says("signing key", "problem", &["secret.key", "backup"]);
    assert!(!data.join("secret.key").exists(), "nothing was created");
    fs::write(data.join("secret.key"), "hunter2").unwrap();
    let damaged = Report::of(&installation).await;
    damaged.says("signing key", "problem", &["not a key"]);
    assert!(!damaged.report.to_string().contains("hunter2"));
    fs::write(data.join("secret.key"), "A".repeat(43) + "=").unwrap();
    let another = Report::of(&installation).await;
    another.ends_with(1);
    another.says("signing key", "problem", &["another key"]);
    fs::write(data.join("secret.key"), key).unwrap();
    Report::of(&installation).await.says("signing key", "ok", &["opens every stored"]);

    let newer = rusqlite::Connection::open(data.join("hooksaga.db")).unwrap();
    let step = "INSERT INTO schema_migrations (version, name, fingerprint, applied_at, lowest_program) \
                VALUES (99, 'future', 'x', 0, ?1)";
    newer.execute(step, [99]).unwrap();
    let report = Report::of(&installation).await;
    report.ends_with(1);
    report.says("schema", "problem", &["newer than this program's", "at least as new"]);
    newer.execute("UPDATE schema_migrations SET lowest_program = 1 WHERE version = 99", []).unwrap();
    Report::of(&installation).await.says("schema", "warning", &["but is compatible"]);
    drop(newer);

    fs::write(data.join("hooksaga.db"), "this is no database".repeat(100)).unwrap();
    let report = Report::of(&installation).await;
    report.ends_with(1);
    report.says("database", "problem", &["not a SQLite database"]);
}

#[tokio::test]
async fn each_hazard_of_the_settings_and_the_machine_is_found() {
    let fresh = || Installation::sqlite();
    let wrong = Report::of(&fresh().with("HOOKSAGA_WORKER_HTTP_TIMEOUT", "60s")).await;
    wrong.ends_with(1);
    wrong.says("configuration", "problem", &["worker.http_timeout", "correct it"]);
    let open = fresh().with("HOOKSAGA_LISTEN", "0.0.0.0:0");
    Report::of(&open).await.says("configuration", "warning", &["no TLS"]);
    let tight = fresh().with("HOOKSAGA_WORKER_LEASE_DURATION", "16s");
    Report::of(&tight).await.says("lease", "warning", &["sent twice", "20s or more"]);
    let short = fresh().with("HOOKSAGA_RETENTION_FINISHED", "1h");
    Report::of(&short).await.says("retention", "warning", &["1d or more"]);
    let nowhere = fresh()
        .with("HOOKSAGA_RETENTION_FINISHED", "7d")
        .with("HOOKSAGA_RETENTION_ARCHIVE", "a-file/archive");
    fs::write(nowhere.folder.path().join("a-file"), "x").unwrap();
    let report = Report::of(&nowhere).await;
    report.ends_with(1);
    report.says("archive", "problem", &["a-file/archive", "create the folder"]);
    // A file system without any room.
    let full = fresh().with("HOOKSAGA_RETENTION_FINISHED", "7d").with("HOOKSAGA_RETENTION_ARCHIVE", "/proc");
    Report::of(&full).await.says("disk", "problem", &["/proc", "make room"]);
    let elsewhere = "postgres://nobody:hunter2@127.0.0.1:9,192.0.2.1:9/none?connect_timeout=1";
    let unchecked = Report::of(&fresh().with("HOOKSAGA_DATABASE_URL", elsewhere)).await;
    unchecked.ends_with(1);
    unchecked.says("database TLS", "warning", &["verifies nothing"]);
    unchecked.says("database", "problem", &["check that the database runs"]);
    assert!(!unchecked.report.to_string().contains("hunter2"));

    let unread = fresh().with("HOOKSAGA_TLS_CERT", "missing.pem").with("HOOKSAGA_TLS_KEY", "missing.key");
    let unread = Report::of(&unread).await;
    unread.ends_with(1);
    unread.says("listener TLS", "problem", &["missing.pem", "server.tls_cert"]);
    let unknown = Report::of(&fresh().with("HOOKSAGA_CALLBACKS_CA_FILE", "missing.pem")).await;
    unknown.ends_with(1);
    unknown.says("callback TLS", "problem", &["missing.pem", "callbacks.ca_file"]);

    let few = fresh();
    let output = tokio::process::Command::new("/bin/sh")
        .args(["-c", "ulimit -n 200 && exec \"$0\" doctor --json", env!("CARGO_BIN_EXE_hooksaga")])
        .current_dir(few.folder.path())
        .env_clear()
        .stdin(Stdio::null())
        .output()
        .await
        .unwrap();
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let report =
        Report { code: output.status.code(), stderr: String::from_utf8(output.stderr).unwrap(), report };
    report.ends_with(1);
    report.says("open files", "problem", &["at most 200", "LimitNOFILE"]);
}

/// Writes a certificate that is valid from some days ago until some days on; its key beside it.
fn certify(installation: &Installation, from: i64, until: i64) {
    let folder = installation.folder.path();
    let day = |days: i64| {
        let seconds = jiff::Timestamp::now().as_second() + days * 24 * 3600;
        rcgen::date_time_ymd(1970, 1, 1) + Duration::from_secs(seconds.try_into().unwrap())
    };
    let mut params = rcgen::CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
    (params.not_before, params.not_after) = (day(from), day(until));
    let key = rcgen::KeyPair::generate().unwrap();
    fs::write(folder.join("cert.pem"), params.self_signed(&key).unwrap().pem()).unwrap();
    fs::write(folder.join("key.pem"), key.serialize_pem()).unwrap();
}

#[tokio::test]
async fn certificates_are_read_as_a_server_would_and_their_end_is_seen_coming() {
    let installation = Installation::sqlite()
        .with("HOOKSAGA_TLS_CERT", "cert.pem")
        .with("HOOKSAGA_TLS_KEY", "key.pem")
        .with("HOOKSAGA_CALLBACKS_CA_FILE", "cert.pem");
    for (from, until, verdict, words) in [
        (-1, 90, "ok", "valid until"),
        (-80, 10, "warning", "SIGHUP"),
        (-90, -1, "problem", "has expired"),
        (2, 90, "problem", "clients refuse it until then"),
    ] {
        certify(&installation, from, until);
        let report = Report::of(&installation).await;
        report.says("listener TLS", verdict, &["cert.pem", words]);
        report.says("callback TLS", "ok", &["1 certificate of cert.pem"]);
        report.ends_with(i32::from(verdict == "problem"));
    }
    let other = rcgen::KeyPair::generate().unwrap().serialize_pem();
    fs::write(installation.folder.path().join("key.pem"), other).unwrap();
    let report = Report::of(&installation).await;
    report.ends_with(1);
    report.says("listener TLS", "problem", &["key.pem", "not the key of the certificate"]);
    fs::write(installation.folder.path().join("cert.pem"), "nothing").unwrap();
    Report::of(&installation).await.says("callback TLS", "problem", &["cert.pem", "callbacks.ca_file"]);
}

on_every_database_server! {
    a_database_server_is_well,
    an_unmigrated_database_and_another_key_are_found,
}

async fn a_database_server_is_well(installation: Installation) {
    let server = Server::start(&installation, &["serve"]).await;
    eventually("the worker is seen", || async {
        (!Report::of(&installation).await.report["workers"].as_array()?.is_empty()).then_some(())
    })
    .await;
    let running = Report::of(&installation).await;
    running.ends_with(0);
    for check in ["database", "schema", "clock", "signing key", "workers", "backlog", "database TLS"] {
        running.says(check, "ok", &[]);
    }
    assert!(running.all("roles").iter().all(|found| found["verdict"] != "problem"), "{:#}", running.report);
    drop(server);
}

async fn an_unmigrated_database_and_another_key_are_found(installation: Installation) {
    let server = Server::start(&installation, &["serve", "--dev"]).await;
    let subscription = json!({"event_type": "t", "callback_url": "http://127.0.0.1:9/"});
    server.api().post("/v1/subscriptions", &subscription).await.expect(201);
    drop(server);
    let other = "Hx4dHBsaGRgXFhUUExIREA8ODQwLCgkIBwYFBAMCAQA=";
    let is_postgres = installation.database_url().unwrap().starts_with("postgres");
    let installation = installation.with("HOOKSAGA_SECRET_KEY", other);
    let report = Report::of(&installation).await;
    report.ends_with(1);
    report.says("signing key", "problem", &["another key", "secrets.old_key"]);
    assert!(!report.report.to_string().contains(other));
    let missing = Report::of(&installation.without("HOOKSAGA_SECRET_KEY")).await;
    missing.says("signing key", "problem", &["secrets.key"]);

    let unmigrated = match is_postgres {
        true => Installation::unmigrated_postgres().await,
        false => Installation::unmigrated_mysql().await,
    };
    let report = Report::of(&unmigrated).await;
    report.ends_with(1);
    report.says("schema", "problem", &["hooksaga migrate"]);
}

#[tokio::test]
async fn roles_without_their_rights_and_a_wrong_clock_are_found_on_postgres() {
    let installation = Installation::postgres().await;
    let url = installation.database_url().unwrap().to_owned();
    Report::of(&installation).await.says("roles", "ok", &["have their rights"]);
    let admin = hooksaga_postgres::connect_as_login(&url).await.unwrap();
    let script = "REVOKE UPDATE (status) ON webhook_delivery_jobs FROM job_worker;
                  REVOKE USAGE ON SEQUENCE events_id_seq FROM event_ingest_writer;
                  CREATE FUNCTION public.clock_timestamp() RETURNS timestamptz LANGUAGE sql
                  AS $$ SELECT pg_catalog.clock_timestamp() + interval '10 minutes' $$;
                  DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET search_path = public, pg_catalog', current_database());
                  END $$";
    admin.batch_execute(script).await.unwrap();
    let report = Report::of(&installation).await;
    report.ends_with(1);
    report.says(
        "roles",
        "problem",
        &["job_worker lacks UPDATE (status) ON webhook_delivery_jobs", "hooksaga migrate"],
    );
    report.says("roles", "problem", &["event_ingest_writer lacks USAGE ON events_id_seq"]);
    assert_eq!(report.all("roles").len(), 2, "{:#}", report.report);
    report.says("clock", "problem", &["ahead of", "NTP"]);
    Report::of(&installation.with("HOOKSAGA_DATABASE_ROLES", "off")).await.says("roles", "warning", &["off"]);
}

#[tokio::test]
async fn roles_that_are_weak_missing_or_without_their_rights_are_found_on_mariadb() {
    let installation = Installation::mysql().await;
    let url = installation.database_url().unwrap().to_owned();
    Report::of(&installation).await.says("roles", "warning", &["rights of its own", "role_urls"]);

    let (address, database) = url.rsplit_once('/').unwrap();
    let role = |role| hooksaga_mysql::role_name(database, role);
    let login = format!("doctor_{}", &database[database.len().saturating_sub(12)..]);
    mariadb::admin_execute(&format!("CREATE USER '{login}'@'%' IDENTIFIED BY 'hunter2'")).await;
    for &each in Role::ALL {
        mariadb::admin_execute(&format!("GRANT '{}' TO '{login}'@'%'", role(each))).await;
    }
    let (_, host) = address.rsplit_once('@').unwrap();
    let installation =
        installation.with("HOOKSAGA_DATABASE_URL", &format!("mysql://{login}:hunter2@{host}/{database}"));
    Report::of(&installation).await.says("roles", "ok", &["have their rights"]);

    let table = format!("`{database}`.webhook_delivery_jobs");
    mariadb::admin_execute(&format!("REVOKE UPDATE (status) ON {table} FROM '{}'", role(Role::JobWorker)))
        .await;
    mariadb::admin_execute(&format!("REVOKE '{}' FROM '{login}'@'%'", role(Role::LeaseCleaner))).await;
    let report = Report::of(&installation).await;
    report.ends_with(1);
    report.says("roles", "problem", &["job_worker lacks UPDATE (status) ON webhook_delivery_jobs"]);
    report.says("roles", "problem", &["no session as lease_cleaner"]);
    assert!(!report.report.to_string().contains("hunter2"));
    mariadb::admin_execute(&format!("DROP USER '{login}'@'%'")).await;
}

#[tokio::test]
async fn a_server_that_is_silent_is_not_waited_for() {
    let installation = Installation::postgres().await;
    let (proxy, url) = Proxy::for_url(installation.database_url().unwrap()).await;
    let installation = installation.with("HOOKSAGA_DATABASE_URL", &format!("{url}?connect_timeout=1"));
    proxy.fall_silent();
    let asked = Instant::now();
    let report = Report::of(&installation).await;
    report.ends_with(1);
    report.says("database", "problem", &[]);
    assert!(asked.elapsed() < Duration::from_secs(20), "{:?}", asked.elapsed());
}
