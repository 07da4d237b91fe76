//! The examples of docs/OUTBOX.md are run as they stand there.

use crate::support::*;
use hooksaga_testkit::mariadb;
use mysql_async::prelude::Queryable as _;
use std::{os::unix::fs::symlink, process::Command};

mod with_tokio_postgres {
    include!("../docs/examples/outbox_tokio_postgres.rs");

    pub(super) async fn order(
        client: &mut tokio_postgres::Client,
        id: i32,
    ) -> Result<i64, tokio_postgres::Error> {
        place_order(client, id).await
    }
}
mod with_mysql_async {
    include!("../docs/examples/outbox_mysql_async.rs");

    pub(super) async fn order(
        connection: &mut mysql_async::Conn,
        id: i32,
    ) -> Result<Option<i64>, mysql_async::Error> {
        place_order(connection, id).await
    }
}

/// What an application has around the examples.
const NODE: &str = r#"
import pg from "pg";
@example@
const pool = new pg.Pool({ connectionString: process.env.SHOP_DATABASE });
const client = await pool.connect();
console.log(await placeOrder(client, 1004));
const again = await placeOrder(client, 1004).catch((error) => error.code);
if (again !== "23505") throw new Error(`its own key should be in the way: ${again}`);
client.release();
await pool.end();
"#;
const GO: &str = r#"
package main

import (
	"context"
	"database/sql"
	"fmt"
	"log"
	"os"

	_ "github.com/lib/pq"
)

@example@

func main() {
	db, err := sql.Open("postgres", os.Getenv("SHOP_DATABASE"))
	if err != nil {
		log.Fatal(err)
	}
	id, err := placeOrder(context.Background(), db, 1005)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(id)
	if _, err = placeOrder(context.Background(), db, 1005); err == nil {
		log.Fatal("its own key should be in the way")
	}
}
"#;

/// The example that is marked with this name.
fn outbox(name: &str) -> String {
    example("docs/OUTBOX.md", name)
}

/// Runs a program to its end; what it prints.
fn run_program(command: &mut Command, to_install: &str) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{error}: install {to_install}"));
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        output.status.success(),
        "{errors} (it needs {to_install}: scripts/install-test-tools installs it)"
    );
    String::from_utf8(output.stdout).unwrap()
}

fn python(code: &str, packages: &str) -> (Command, String) {
    // Debian's own: the packages are installed for that one.
    let mut command = Command::new("/usr/bin/python3");
    command.args(["-c", code]);
    (command, packages.to_owned())
}

/// A Go program, with what Debian packages of Go's libraries.
fn go(code: &str, installation: &Installation) -> Command {
    let file = installation.folder.path().join("order.go");
    std::fs::write(&file, code).unwrap();
    let mut command = Command::new("go");
    // Without modules nothing is fetched. What was compiled once is kept between runs.
    command.env("GO111MODULE", "off").env("GOPATH", "/usr/share/gocode").env("PGSSLMODE", "disable");
    command.arg("run").arg(file);
    command
}

/// Every order has an event, by its external id.
async fn check(api: &Api, orders: &[i64]) {
    for order in orders {
        let found = api.get(&format!("/v1/events?external_id=order-{order}")).await.expect(200);
        let items = found["items"].as_array().unwrap();
        assert_eq!(items.len(), 1, "order {order}");
        let event = api.get(&format!("/v1/events/{}", items[0]["id"])).await.expect(200);
        assert_eq!(event["payload"]["order"], json!(order));
        assert_eq!(event["event_type"], json!("order.created"));
    }
}

#[test]
fn the_rust_examples_are_what_the_tests_compile() {
    for name in ["tokio-postgres", "mysql_async"] {
        let file = format!("docs/examples/outbox_{}.rs", name.replace('-', "_"));
        assert_eq!(outbox(name), text(&file), "{file}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_examples_for_postgresql_work() {
    let installation = Installation::postgres().await;
    let server = installation.serve().await;
    let url = installation.database_url().unwrap();
    let login = format!("shop_{}", url.rsplit_once('/').unwrap().1);
    let (admin, connection) = tokio_postgres::connect(url, tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    let set_up = format!("CREATE ROLE {login} LOGIN; CREATE SCHEMA AUTHORIZATION {login}");
    admin.batch_execute(&set_up).await.unwrap();
    admin.batch_execute(&outbox("grant-postgresql").replace("shop", &login)).await.unwrap();
    let url = url.replace("postgres://postgres@", &format!("postgres://{login}@"));
    let (mut shop, connection) = tokio_postgres::connect(&url, tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    let orders = format!("CREATE TABLE {login}.orders (id int PRIMARY KEY, total int)");
    shop.batch_execute(&orders).await.unwrap();

    run_program(
        Command::new("psql").args(["-X", "-v", "ON_ERROR_STOP=1", &url, "-c", &outbox("psql")]),
        "postgresql-client",
    );
    let (mut command, packages) = python(&outbox("psycopg"), "python3-psycopg");
    let printed = run_program(command.env("SHOP_DATABASE", &url), &packages);
    assert!(printed.trim().parse::<i64>().unwrap() > 0, "{printed}");
    assert!(with_tokio_postgres::order(&mut shop, 1003).await.unwrap() > 0);
    // The same order again: its own key is in the way, and the event is undone with it.
    with_tokio_postgres::order(&mut shop, 1003).await.unwrap_err();
    let module = installation.folder.path().join("order.mjs");
    std::fs::write(&module, NODE.replace("@example@", &outbox("pg"))).unwrap();
    symlink(tool("node/node_modules"), installation.folder.path().join("node_modules")).unwrap();
    let printed = run_program(Command::new("node").arg(module).env("SHOP_DATABASE", &url), "nodejs");
    assert!(printed.trim().parse::<i64>().unwrap() > 0, "{printed}");
    let printed = run_program(
        go(&GO.replace("@example@", &outbox("go")), &installation).env("SHOP_DATABASE", &url),
        "golang-go",
    );
    assert!(printed.trim().parse::<i64>().unwrap() > 0, "{printed}");
    check(&server.api(), &[1001, 1002, 1003, 1004, 1005]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_examples_for_mariadb_work() {
    // The name that the examples give to the database.
    let installation = Installation::mysql_named("hooksaga").await;
    let server = installation.serve().await;
    let login = "shop_of_examples".to_owned();
    for sql in [
        format!("DROP DATABASE IF EXISTS `{login}`"),
        format!("DROP USER IF EXISTS '{login}'@'127.0.0.1'"),
        format!("CREATE DATABASE `{login}`"),
        format!("CREATE USER '{login}'@'127.0.0.1'"),
        format!("GRANT ALL ON `{login}`.* TO '{login}'@'127.0.0.1'"),
        outbox("grant-mariadb").replace("'shop'@'%'", &format!("'{login}'@'127.0.0.1'")),
        format!("CREATE TABLE `{login}`.orders (id INT PRIMARY KEY, total INT)"),
    ] {
        mariadb::admin_execute(&sql).await;
    }
    let admin = mariadb::admin_url();
    let port = admin.rsplit_once(':').unwrap().1.to_owned();
    run_program(
        Command::new("mariadb")
            .args(["--no-defaults", "-h127.0.0.1", &format!("-P{port}"), &format!("-u{login}")])
            .args(["-D", &login, "-e", &outbox("mariadb")]),
        "mariadb-client",
    );
    let (mut command, packages) = python(&outbox("pymysql"), "python3-pymysql");
    command.envs([
        ("SHOP_HOST", "127.0.0.1"),
        ("SHOP_PORT", &port),
        ("SHOP_USER", &login),
        ("SHOP_DATABASE", &login),
    ]);
    let printed = run_program(&mut command, &packages);
    assert!(printed.trim().parse::<i64>().unwrap() > 0, "{printed}");
    let url = format!("{}/{login}", admin.replace("mysql://admin@", &format!("mysql://{login}@")));
    let mut shop = mysql_async::Conn::new(mysql_async::Opts::from_url(&url).unwrap()).await.unwrap();
    assert!(with_mysql_async::order(&mut shop, 1003).await.unwrap().unwrap() > 0);
    with_mysql_async::order(&mut shop, 1003).await.unwrap_err();
    check(&server.api(), &[1001, 1002, 1003]).await;
    let orders: Option<i64> = shop.query_first("SELECT COUNT(*) FROM orders").await.unwrap();
    assert_eq!(orders, Some(3));
}
