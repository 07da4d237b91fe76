//! Shell commands of the documents, run as a reader would.

use super::{Installation, eventually, server::binary};
use std::{env, fs, os::unix::fs::symlink, path::PathBuf, process::Stdio};
use tokio::process::{Child, Command};

/// Runs the commands, leaves their exit code in a file, and stays: its id is that of their process group, which must be
/// nobody else's when they are killed.
const LEADER: &str = r#"/bin/bash -e -o pipefail -O expand_aliases -c "$0"; echo $? >ended.new; mv ended.new ended; exec sleep 600"#;

/// A running script and what it has printed; it and all that it started are killed when it is dropped.
pub(crate) struct Script {
    leader: Child,
    folder: PathBuf,
}

impl Script {
    /// Starts the commands in the installation's folder, beside settings of its own. There `hooksaga` and
    /// `target/release/hooksaga` are the program under test. The script ends at the first command that fails.
    pub(crate) fn start(installation: &Installation, settings: &[(&str, &str)], commands: &str) -> Self {
        let folder = installation.folder.path().to_owned();
        for place in ["bin", "target/release"] {
            let place = folder.join(place);
            fs::create_dir_all(&place).unwrap();
            // There already where a script was started before.
            let _ = symlink(binary(), place.join("hooksaga"));
        }
        let _ = fs::remove_file(folder.join("ended"));
        let search = env::var("PATH").expect("PATH is set");
        // Not a pipe: what stays in the background would keep it open.
        let output = fs::File::create(folder.join("printed")).unwrap();
        let leader = Command::new("/bin/sh")
            .args(["-c", LEADER, commands])
            .current_dir(&folder)
            .env_clear()
            .env("PATH", format!("{}:{search}", folder.join("bin").display()))
            .envs(installation.environment())
            .envs(settings.iter().copied())
            .stdin(Stdio::null())
            .stdout(output.try_clone().unwrap())
            .stderr(output)
            .process_group(0)
            .spawn()
            .unwrap();
        Self { leader, folder }
    }

    /// Everything that was printed so far.
    pub(crate) fn printed(&self) -> String {
        String::from_utf8_lossy(&fs::read(self.folder.join("printed")).unwrap()).into_owned()
    }

    /// Waits until it has printed a line with this text; the line.
    pub(crate) async fn said(&self, text: &str) -> String {
        eventually(&format!("the script says {text:?}"), || async {
            self.printed().lines().find(|line| line.contains(text)).map(str::to_owned)
        })
        .await
    }

    /// Waits until every command has succeeded. What is in the background goes on.
    pub(crate) async fn succeeds(&self) {
        let code =
            eventually("the script ends", || async { fs::read_to_string(self.folder.join("ended")).ok() });
        assert_eq!(code.await.trim(), "0", "a command has failed");
    }
}

impl Drop for Script {
    #[expect(clippy::print_stderr, reason = "the test harness shows it with the failure")]
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!(
                "the script printed: {}",
                fs::read_to_string(self.folder.join("printed")).unwrap_or_default()
            );
        }
        let group = self.leader.id().expect("nobody has waited for it");
        // If it fails: a panic while another one is handled would end all tests.
        let _ = std::process::Command::new("kill").args(["-KILL", "--", &format!("-{group}")]).status();
    }
}

/// Runs commands to their end; what they print.
pub(crate) async fn run_script(
    installation: &Installation,
    settings: &[(&str, &str)],
    commands: &str,
) -> String {
    let script = Script::start(installation, settings, commands);
    script.succeeds().await;
    script.printed()
}
