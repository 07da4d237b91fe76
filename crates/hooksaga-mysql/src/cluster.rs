//! Whether a session's server may be a node of a Galera Cluster, where a text with several statements is no transaction.
//!
//! A commit on one node can end a conflicting transaction on another node at any moment. The loser learns that from its next
//! command, which fails with error 1213. Between two statements of one text there is no command. If the transaction is ended
//! there, the server rolls it back silently and runs the rest of the text outside of any transaction: it commits each
//! statement at once, and the COMMIT succeeds. So in a cluster every statement is sent as a separate command
//! ([`crate::transaction`]).
//!
//! A server can become a node while this process runs. So every new session asks its server before it may send texts.

use crate::error::code;
use mysql_async::{Conn, Error, Opts, OptsBuilder};

/// The last statement of a session's set-up: fails on a node with [`TWO_ROWS`], since two rows are no value. No other
/// statement of the set-up can fail with that. (Each server has its own table of variables, hence the version comments;
/// MySQL's is for Percona XtraDB Cluster.)
const ALONE: &str = "; SELECT (SELECT 1 FROM \
     /*M!100100 information_schema.SESSION_VARIABLES */ /*!80000 performance_schema.session_variables */ v \
     JOIN (SELECT 1 AS n UNION ALL SELECT 2) twice \
     WHERE v.VARIABLE_NAME IN ('wsrep_on', 'WSREP_ON') AND v.VARIABLE_VALUE = 'ON')";

const TWO_ROWS: u16 = 1242;

/// Options for a session that fails to open if the server is a cluster node. Its set-up must be one text.
pub(crate) fn outside(opts: &Opts) -> Opts {
    let setup: Vec<String> = opts.setup().iter().map(|text| format!("{text}{ALONE}")).collect();
    OptsBuilder::from_opts(opts.clone()).setup(setup).into()
}

/// Whether a session [`outside`] a cluster failed to open because its server is a node of one.
pub(crate) fn is_refusal(error: &Error) -> bool {
    code(error) == Some(TWO_ROWS)
}

/// Whether its server may be a node: the session did not check that it is none.
pub(crate) fn may_be_node(connection: &Conn) -> bool {
    !connection.opts().setup().last().is_some_and(|text| text.ends_with(ALONE))
}
