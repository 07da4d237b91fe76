async fn place_order(client: &mut tokio_postgres::Client, id: i32) -> Result<i64, tokio_postgres::Error> {
    let transaction = client.transaction().await?;
    transaction.execute("INSERT INTO orders (id, total) VALUES ($1, 42)", &[&id]).await?;
    let (payload, external_id) = (format!(r#"{{"order": {id}}}"#), format!("order-{id}"));
    let sql = "SELECT hooksaga_append('order.created', $1, $2)";
    let event_id = transaction.query_one(sql, &[&payload, &external_id]).await?.get(0);
    transaction.commit().await?;
    Ok(event_id)
}
