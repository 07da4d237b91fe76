//! `hooksaga bench`: what it leaves behind when it is interrupted, which is nothing.

use crate::support::*;
use std::{fs, net::TcpStream, path::Path};

on_every_back_end! {
    an_interrupted_benchmark_ends_its_server_and_removes_what_it_made,
}

async fn an_interrupted_benchmark_ends_its_server_and_removes_what_it_made(installation: Installation) {
    let folder = installation.folder.path().join("scratch");
    fs::create_dir(&folder).unwrap();
    let installation = installation.with("TMPDIR", folder.to_str().unwrap());
    let url = installation.database_url().map(ToOwned::to_owned);
    // Far more than there is time for.
    let bench = Process::start(&installation, &["bench", "--events", "10000000"]).await;
    let (name, server) = eventually("its server listens", || async { listening_in(&folder) }).await;
    assert!(TcpStream::connect(&server).is_ok(), "{server}");

    let (code, said) = bench.interrupt().await;
    assert_eq!(code, Some(1), "{said:?}");
    // It was killed; the kernel closes its socket a moment later.
    eventually("the server is gone", || async { TcpStream::connect(&server).err() }).await;
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

/// The name of the only scratch folder, and where the server listens that logs into it.
fn listening_in(folder: &Path) -> Option<(String, String)> {
    let scratch = fs::read_dir(folder).ok()?.next()?.ok()?;
    let logs =
        fs::read_dir(scratch.path()).ok()?.flatten().filter_map(|file| fs::read_to_string(file.path()).ok());
    let address =
        logs.flat_map(|log| log.lines().map(ToOwned::to_owned).collect::<Vec<_>>()).find_map(|line| {
            let record: Value = serde_json::from_str(&line).ok()?;
            Some(record["message"].as_str()?.strip_prefix("listening on http://")?.trim().to_owned())
        })?;
    Some((scratch.file_name().into_string().ok()?, address))
}
