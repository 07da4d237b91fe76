async fn place_order(connection: &mut mysql_async::Conn, id: i32) -> Result<Option<i64>, mysql_async::Error> {
    use mysql_async::prelude::Queryable;
    let mut transaction = connection.start_transaction(mysql_async::TxOpts::default()).await?;
    transaction.exec_drop("INSERT INTO orders (id, total) VALUES (?, 42)", (id,)).await?;
    let (payload, external_id) = (format!(r#"{{"order": {id}}}"#), format!("order-{id}"));
    let sql = "CALL hooksaga.hooksaga_append('order.created', ?, ?, NULL, NULL)";
    let event_id = transaction.exec_first(sql, (payload, external_id)).await?;
    transaction.commit().await?;
    Ok(event_id)
}
