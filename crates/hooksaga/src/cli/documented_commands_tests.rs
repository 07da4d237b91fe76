//! Checks that the command line accepts every command in the documentation: every flag exists, and nothing is missing.

use super::Cli;
use clap::{Parser, error::ErrorKind};
use hooksaga_testkit::scratch::ScratchDir;
use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

/// A command that a page names.
struct Named {
    page: String,
    /// As the page has it, with something in the place of what a reader has to fill in.
    command: String,
    /// A line of a block is one to run; prose may leave out what everybody has to choose.
    is_whole: bool,
}

fn pages() -> Vec<PathBuf> {
    let project = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut paths =
        ["README.md", "CONTRIBUTING.md", "deploy/helm/README.md"].map(|path| project.join(path)).to_vec();
    let docs = fs::read_dir(project.join("docs")).unwrap().map(|entry| entry.unwrap().path());
    paths.extend(docs.filter(|path| path.extension().is_some_and(|extension| extension == "md")));
    paths
}

/// Lines of shell blocks, and `hooksaga …` between backquotes.
fn commands(path: &Path) -> Vec<Named> {
    let page = path.file_name().unwrap().to_string_lossy();
    let mut found = Vec::new();
    let mut add = |command: &str, is_whole| {
        let is_ours = command.starts_with("hooksaga ");
        let filled = filled_in(command).filter(|_| is_ours);
        found.extend(filled.map(|command| Named { page: page.to_string(), command, is_whole }));
    };
    let mut block: Option<String> = None;
    let mut paragraph = String::new();
    let text = fs::read_to_string(path).unwrap().replace("\\\n", " ");
    for line in text.lines().chain([""]) {
        let fence = line.trim_start().strip_prefix("```");
        if block.is_none() && (line.is_empty() || fence.is_some()) {
            // A command may go on in the next line of its paragraph.
            paragraph.split('`').skip(1).step_by(2).for_each(|piece| add(piece, false));
            paragraph.clear();
        }
        match (fence, block.as_deref()) {
            (Some(_), Some(_)) => block = None,
            (Some(kind), None) => block = Some(kind.to_owned()),
            (None, Some("sh")) => add(&of_this_program(line.trim_start()), true),
            (None, Some(_)) => {}
            (None, None) => {
                paragraph.push_str(line);
                paragraph.push(' ');
            }
        }
    }
    found
}

/// What is behind `kubectl exec … --`, `cargo run … --` and a path.
fn of_this_program(line: &str) -> String {
    match line.split_once(" -- ") {
        Some((before, rest)) if before.starts_with("kubectl ") => rest.to_owned(),
        Some((before, rest)) if before.starts_with("cargo run ") => format!("hooksaga {rest}"),
        _ => line.trim_start_matches("target/release/").to_owned(),
    }
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

/// The words that a shell makes of each command.
fn words(commands: &[Named]) -> Vec<Vec<String>> {
    let folder = ScratchDir::new("documents");
    let mut script = "hooksaga() { printf '%s\\0' hooksaga \"$@\" >\"$number\"; }\n".to_owned();
    for (number, named) in commands.iter().enumerate() {
        script.push_str(&format!("number={number}\n{}\n", named.command));
    }
    let output = Command::new("/bin/bash").args(["-c", &script]).current_dir(folder.path()).output().unwrap();
    assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
    let read = |number: usize| {
        let words = fs::read_to_string(folder.path().join(number.to_string())).unwrap();
        words.split_terminator('\0').map(str::to_owned).collect()
    };
    (0..commands.len()).map(read).collect()
}

/// What the command line says against a command.
fn objection(words: &[String], is_whole: bool) -> Option<String> {
    let error = Cli::try_parse_from(words).err()?;
    let incomplete = [
        ErrorKind::MissingRequiredArgument,
        ErrorKind::MissingSubcommand,
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand,
    ];
    let is_fine = match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => true,
        kind => !is_whole && incomplete.contains(&kind),
    };
    (!is_fine).then(|| error.to_string())
}

#[test]
fn every_command_in_the_documents_is_understood() {
    let commands: Vec<Named> = pages().iter().flat_map(|path| commands(path)).collect();
    let whole = commands.iter().filter(|named| named.is_whole).count();
    assert!(whole >= 15 && commands.len() > 60, "{whole} of {}", commands.len());
    let mut objections = String::new();
    for (named, words) in commands.iter().zip(words(&commands)) {
        if let Some(objection) = objection(&words, named.is_whole) {
            objections.push_str(&format!("{}: {}\n{objection}\n", named.page, named.command));
        }
    }
    assert!(objections.is_empty(), "not understood:\n{objections}");
}

#[test]
fn a_wrong_flag_and_a_missing_argument_are_found() {
    let refused = |command: &str, is_whole| {
        let words: Vec<String> = command.split(' ').map(str::to_owned).collect();
        objection(&words, is_whole).is_some()
    };
    assert!(refused("hooksaga serve --develop", true) && refused("hooksaga serve --develop", false));
    assert!(refused("hooksaga keys make", false));
    assert!(refused("hooksaga listen --port many", false));
    assert!(refused("hooksaga subscriptions add order.created", true));
    assert!(!refused("hooksaga subscriptions add order.created", false));
    assert!(!refused("hooksaga serve --dev", true));
}
