//! The documents: every command that they name is one that this program understands, and every link leads somewhere.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

fn project() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The pages for people, with their places.
fn pages() -> Vec<(PathBuf, String)> {
    let mut paths = vec![
        project().join("README.md"),
        project().join("CONTRIBUTING.md"),
        project().join("deploy/helm/README.md"),
    ];
    let docs = fs::read_dir(project().join("docs")).unwrap().map(|entry| entry.unwrap().path());
    paths.extend(docs.filter(|path| path.extension().is_some_and(|extension| extension == "md")));
    paths.into_iter().map(|path| (path.clone(), fs::read_to_string(path).unwrap())).collect()
}

/// What of a page are commands of this program: lines of shell blocks, and `hooksaga …` between backquotes.
fn commands(page: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut block: Option<&str> = None;
    for line in page.lines() {
        if let Some(kind) = line.trim_start().strip_prefix("```") {
            block = if block.is_some() { None } else { Some(kind) };
        } else if block == Some("sh") {
            // A block in a list is indented.
            let line = line.trim_start();
            let line = line
                .rsplit_once(" -- ")
                .map_or(line, |(kubectl, rest)| if kubectl.starts_with("kubectl") { rest } else { line });
            found.extend(line.starts_with("hooksaga ").then(|| line.to_owned()));
        } else if block.is_none() {
            let pieces = line.split('`').skip(1).step_by(2);
            found.extend(pieces.filter(|piece| piece.starts_with("hooksaga ")).map(str::to_owned));
        }
    }
    found
}

/// The command alone, with something in the place of what a reader has to fill in.
fn filled_in(command: &str) -> Option<String> {
    let command =
        ["  #", " |", " >", " &"].iter().fold(command, |text, end| text.split(end).next().unwrap_or(text));
    let command = command.replace("--secret whsec_…", "--secret whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw");
    let command = command.replace("--since …", "--since 1h").replace(" ID", " 1").replace("VERSION", "1.0");
    // `hooksaga bench --against` speaks of a flag, not of a command.
    let is_whole = !command.ends_with("--against");
    is_whole.then(|| command.trim_end_matches([' ', '…']).to_owned())
}

#[test]
fn every_command_in_the_documents_is_understood() {
    // With --help at its end a command is read and not carried out; what it does not know is an error before that.
    let mut script = format!("hooksaga() {{ '{}' \"$@\" --help; }}\n", env!("CARGO_BIN_EXE_hooksaga"));
    let mut number = 0;
    for (path, page) in pages() {
        for command in commands(&page) {
            let Some(command) = filled_in(&command) else { continue };
            let told = format!("{}: {command}", path.file_name().unwrap().display()).replace('\'', "'\\''");
            script.push_str(&format!("{command} >/dev/null 2>error || {{ echo '{told}'; cat error; }}\n"));
            number += 1;
        }
    }
    assert!(number > 30, "{number}");
    let folder = hooksaga_testkit::scratch::ScratchDir::new("documents");
    let output = Command::new("/bin/bash").args(["-c", &script]).current_dir(folder.path()).output().unwrap();
    let said = [output.stdout, output.stderr].concat();
    assert!(said.is_empty(), "not understood:\n{}", String::from_utf8_lossy(&said));
}

#[test]
fn every_link_in_the_documents_leads_somewhere() {
    let mut links = 0;
    for (path, page) in pages() {
        for target in
            page.split("](").skip(1).filter_map(|rest| rest.split_once(')')).map(|(target, _)| target)
        {
            if target.contains("://") || target.contains(' ') {
                continue;
            }
            let (file, place) = target.split_once('#').unwrap_or((target, ""));
            let linked = if file.is_empty() { path.clone() } else { path.parent().unwrap().join(file) };
            assert!(linked.exists(), "{}: {target} is not there", path.display());
            if !place.is_empty() {
                let text = fs::read_to_string(&linked).unwrap();
                let headings = text.lines().filter(|line| line.starts_with('#')).map(anchor);
                assert!(
                    headings.into_iter().any(|heading| heading == place),
                    "{}: no {target}",
                    path.display()
                );
            }
            links += 1;
        }
    }
    assert!(links > 60, "{links}");
}

/// A heading as links name it.
fn anchor(heading: &str) -> String {
    let text = heading.trim_start_matches('#').trim().to_lowercase();
    text.chars()
        .filter(|c| c.is_alphanumeric() || " -_".contains(*c))
        .map(|c| if c == ' ' { '-' } else { c })
        .collect()
}

#[test]
fn the_index_of_the_documents_is_complete() {
    let index = fs::read_to_string(project().join("docs/README.md")).unwrap();
    for entry in fs::read_dir(project().join("docs")).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        if name.ends_with(".md") && name != "README.md" {
            assert!(index.contains(&format!("[{name}]({name})")), "{name} is not in docs/README.md");
        }
    }
}
