//! A native BF Runtime client for measurements: does one kind of work as one client, and writes what it took as one line of JSON.
//!
//! Requests are encoded before the clock starts, and are sent one after the other, each when the one before has been answered.
#![forbid(unsafe_code)]

mod entries;
mod session;
mod work;

use clap::{Parser, Subcommand};
use std::fmt::Display;
use std::path::PathBuf;
use std::process::ExitCode;

/// Why the work was not done.
#[derive(Debug)]
pub struct Failure(pub String);

impl<E: std::error::Error> From<E> for Failure {
    fn from(error: E) -> Self {
        let mut text = error.to_string();
        let mut inner = error.source();
        while let Some(one) = inner {
            text = format!("{text}: {one}");
            inner = one.source();
        }
        Self(text)
    }
}

#[derive(Parser)]
#[command(about = "A native BF Runtime client for measurements")]
struct Arguments {
    /// unix:PATH or http://ADDRESS:PORT
    #[arg(long)]
    target: String,
    #[arg(long, default_value_t = 1)]
    client_id: u32,
    #[command(subcommand)]
    work: Work,
}

#[derive(Subcommand)]
enum Work {
    /// Insert all entries of a file
    Insert {
        file: PathBuf,
        /// Updates in a request
        #[arg(long, default_value_t = 1000)]
        batch: usize,
    },
    /// Read the whole relay table
    Read,
    /// Empty the relay table
    Clear,
    /// Insert the first entries of a file one at a time, and remove them
    Singles {
        file: PathBuf,
        #[arg(long, default_value_t = 2000)]
        count: usize,
    },
    /// Insert and remove entries of a file one at a time until standard input ends
    Beside { file: PathBuf },
}

#[tokio::main]
async fn main() -> ExitCode {
    match run(Arguments::parse()).await {
        Ok(found) => {
            println!("{found}");
            ExitCode::SUCCESS
        }
        Err(Failure(text)) => {
            eprintln!("{text}");
            ExitCode::FAILURE
        }
    }
}

async fn run(arguments: Arguments) -> Result<impl Display, Failure> {
    let mut session = session::Session::open(&arguments.target, arguments.client_id).await?;
    match arguments.work {
        Work::Insert { file, batch } => work::insert(&mut session, &entries::read(&file)?, batch).await,
        Work::Read => work::read(&mut session).await,
        Work::Clear => work::clear(&mut session).await,
        Work::Singles { file, count } => work::singles(&mut session, &entries::read(&file)?, count).await,
        Work::Beside { file } => work::beside(&mut session, &entries::read(&file)?).await,
    }
}
