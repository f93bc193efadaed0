//! The journal in a real Redis: what is kept, who may write, and what becomes of it when Redis is hung, dead, emptied or full.
//! These tests need redis-server on PATH.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use common::*;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use shunt_journal::{Event, Grants, Journal, Reader, SharedSettings};
use shunt_standby::{Answer, Ask, Holder};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::time::timeout;

const LENGTH: Duration = Duration::from_secs(60);

/// A Redis of its own, which keeps nothing on disk.
struct Redis {
    process: Child,
    folder: Folder,
}

impl Redis {
    fn start(test: &str) -> Self {
        let folder = Folder::new(test);
        let process = Self::run(&folder);
        let redis = Self { process, folder };
        redis.await_answer();
        redis
    }

    fn run(folder: &Folder) -> Child {
        let mut command = Command::new("redis-server");
        command
            .args(["--port", "0", "--save", "", "--unixsocket"])
            .arg(Self::socket(folder));
        command.stdout(Stdio::null()).spawn().expect("redis-server is on PATH")
    }

    fn socket(folder: &Folder) -> PathBuf {
        folder.0.join("redis.sock")
    }

    fn ask<T: redis::FromRedisValue>(&self, words: &[&str]) -> redis::RedisResult<T> {
        let client = redis::Client::open(self.url())?;
        let mut command = redis::cmd(words[0]);
        for word in &words[1..] {
            command.arg(word);
        }
        command.query(&mut client.get_connection()?)
    }

    fn await_answer(&self) {
        for _ in 0..1000 {
            if self.ask::<String>(&["PING"]).is_ok() {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        panic!("redis-server does not come up");
    }

    fn url(&self) -> String {
        format!("unix://{}", Self::socket(&self.folder).display())
    }

    fn settings(&self) -> SharedSettings {
        SharedSettings::new(&self.url(), "test", None).unwrap()
    }

    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.process.id().try_into().unwrap()), signal).unwrap();
    }

    /// Dies, and another one that knows nothing comes.
    fn replace(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
        let _ = std::fs::remove_file(Self::socket(&self.folder));
        self.process = Self::run(&self.folder);
        self.await_answer();
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn holder(id: &str) -> Holder {
    Holder {
        id: id.into(),
        name: id.into(),
        control: String::new(),
        ng: String::new(),
        host: String::new(),
        pid: 0,
        started: 0,
    }
}

fn take(least: u64, instead_of: Option<String>) -> Ask {
    Ask::Take {
        may_take: true,
        least,
        instead_of,
        spare_emptied: false,
    }
}

/// An agent that has just been granted the lease.
struct Active {
    journal: Journal,
    reader: Reader,
    events: UnboundedReceiver<Event>,
    grants: Grants,
    text: String,
    token: u64,
}

async fn active(redis: &Redis, id: &str, instead_of: Option<String>) -> Active {
    let settings = redis.settings();
    let mut grants = Grants::new(settings.clone(), holder(id), LENGTH);
    let (answer, error) = grants.ask(&take(0, instead_of)).await;
    let Answer::Granted { token, text } = answer else {
        panic!("{answer:?}: {error:?}")
    };
    let (journal, mut events) = Journal::start_shared(settings).unwrap();
    journal.begin();
    let event = timeout(Duration::from_secs(10), events.recv()).await;
    let Ok(Some(Event::Opened(reader))) = event else {
        panic!("{event:?}")
    };
    Active {
        journal,
        reader,
        events,
        grants,
        text,
        token,
    }
}

#[tokio::test]
async fn rows_of_one_agent_are_the_next_ones() {
    let redis = Redis::start("shared-rows");
    let one = active(&redis, "one", None).await;
    assert_eq!(one.reader.piece().await, None);
    for number in 0..500_u16 {
        one.journal.put(&row(&format!("call-{number}"), None, 10_000 + 4 * number, 0));
        one.journal.put(&row(&format!("call-{number}"), Some(2), 20_000 + 4 * number, 0));
    }
    one.journal.remove(key("call-499", Some(2)));
    one.journal.documents().put("conference:room", b"{}".to_vec());
    until(&one.journal, |status| status.pending == 0).await;
    assert!(one.journal.kept().await);
    let two = active(&redis, "two", Some(one.text.clone())).await;
    assert_eq!(two.token, 2);
    assert_eq!(two.reader.of_call(b"call-7").await.len(), 2);
    assert_eq!(two.reader.of_call(b"call-499").await, [row("call-499", None, 11_996, 0)]);
    assert!(two.reader.of_call(b"call-").await.is_empty());
    let holders = two.reader.of_port(10_403).await;
    assert!(
        holders.iter().any(|row| row.key == key("call-100", None)) && holders.len() <= 3,
        "{holders:?}"
    );
    assert_eq!(two.reader.documents().await, Some(vec![("conference:room".into(), b"{}".to_vec())]));
    assert_eq!(all(&two.reader).await.len(), 999);
}

#[tokio::test]
async fn an_agent_without_the_lease_writes_nothing() {
    let redis = Redis::start("shared-fence");
    let mut one = active(&redis, "one", None).await;
    let two = active(&redis, "two", Some(one.text.clone())).await;
    one.journal.put(&row("late", None, 10_000, 1));
    until(&one.journal, |status| status.error.is_some()).await;
    assert!(!one.journal.kept().await);
    assert!(two.reader.of_call(b"late").await.is_empty());
    let ask = Ask::Renew {
        token: one.token,
        text: one.text.clone(),
    };
    assert_eq!(one.grants.ask(&ask).await.0, Answer::Another);
    two.journal.put(&row("timely", None, 10_000, 1));
    assert!(two.journal.kept().await);
}

#[tokio::test]
async fn a_lease_is_held_released_and_runs_out() {
    let redis = Redis::start("shared-lease");
    let mut one = Grants::new(redis.settings(), holder("one"), LENGTH);
    let mut two = Grants::new(redis.settings(), holder("two"), Duration::from_millis(200));
    let (Answer::Granted { token: 1, text }, None) = one.ask(&take(0, None)).await else {
        panic!("not granted")
    };
    let (Answer::Held { text: seen, left }, None) = two.ask(&take(0, None)).await else {
        panic!("not held")
    };
    assert!(seen == text && left > LENGTH / 2 && left <= LENGTH);
    assert_eq!(Holder::read(&seen), Some((holder("one"), 1)));
    one.release(&text).await.unwrap();
    let (Answer::Granted { token: 8, .. }, None) = two.ask(&take(7, None)).await else {
        panic!("not granted")
    };
    let deadline = Instant::now() + Duration::from_secs(10);
    while !matches!(one.ask(&take(1, None)).await.0, Answer::Granted { token: 9, .. }) {
        assert!(Instant::now() < deadline);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn redis_that_hangs_holds_nobody_up_and_has_everything_afterwards() {
    let redis = Redis::start("shared-hung");
    let one = active(&redis, "one", None).await;
    redis.signal(Signal::SIGSTOP);
    let began = Instant::now();
    for number in 0..10 {
        one.journal.put(&row("hung", Some(number), 10_000, 1));
        assert!(!one.journal.kept().await);
    }
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    until(&one.journal, |status| {
        status.error.as_ref().is_some_and(|error| error.contains("no answer"))
    })
    .await;
    redis.signal(Signal::SIGCONT);
    until(&one.journal, |status| status.pending == 0 && status.error.is_none()).await;
    assert_eq!(one.reader.of_call(b"hung").await.len(), 10);
}

#[tokio::test]
async fn redis_that_comes_back_empty_is_written_once_there_is_a_token_again() {
    let mut redis = Redis::start("shared-emptied");
    let mut one = active(&redis, "one", None).await;
    one.journal.put(&row("a", None, 10_000, 1));
    assert!(one.journal.kept().await);
    redis.replace();
    one.journal.put(&row("b", None, 10_004, 1));
    until(&one.journal, |status| status.error.is_some()).await;
    let ask = Ask::Renew {
        token: one.token,
        text: one.text.clone(),
    };
    // The connection to the one that died ends with the first question.
    let answers = [one.grants.ask(&ask).await.0, one.grants.ask(&ask).await.0];
    assert_eq!(answers, [Answer::Failed, Answer::Emptied]);
    // The journal's settings share the token with those of the lease.
    let (Answer::Granted { token: 2, .. }, None) = one.grants.ask(&take(one.token, None)).await else {
        panic!("not granted")
    };
    one.journal.put(&row("a", None, 10_000, 2));
    until(&one.journal, |status| status.pending == 0 && status.error.is_none()).await;
    assert_eq!(one.reader.of_call(b"a").await.len() + one.reader.of_call(b"b").await.len(), 2);
}

#[tokio::test]
async fn redis_that_is_full_says_so_and_still_grants_the_lease() {
    let redis = Redis::start("shared-full");
    let mut one = active(&redis, "one", None).await;
    redis.ask::<()>(&["CONFIG", "SET", "maxmemory", "1"]).unwrap();
    one.journal.put(&row("a", None, 10_000, 1));
    until(&one.journal, |status| {
        status.error.as_ref().is_some_and(|error| error.contains("OOM"))
    })
    .await;
    let ask = Ask::Renew {
        token: one.token,
        text: one.text.clone(),
    };
    assert_eq!(one.grants.ask(&ask).await.0, Answer::Renewed);
    let mut two = Grants::new(redis.settings(), holder("two"), LENGTH);
    let (answer, error) = two.ask(&take(0, Some(one.text.clone()))).await;
    assert!(matches!(answer, Answer::Granted { token: 2, .. }), "{answer:?}: {error:?}");
    let (_, _) = two
        .ask(&Ask::Renew {
            token: 2,
            text: String::new(),
        })
        .await;
    redis.ask::<()>(&["CONFIG", "SET", "maxmemory", "0"]).unwrap();
    until(&one.journal, |status| {
        status.error.as_ref().is_some_and(|error| error.contains("another agent"))
    })
    .await;
}

#[tokio::test]
async fn rows_of_another_format_and_keys_of_another_type_are_moved_aside() {
    let redis = Redis::start("shared-format");
    redis.ask::<()>(&["SET", "shunt:{test}:format", "1"]).unwrap();
    redis.ask::<()>(&["HSET", "shunt:{test}:lines", "field", "old"]).unwrap();
    let mut one = active(&redis, "one", None).await;
    assert_eq!(one.reader.piece().await, None);
    let aside: Vec<String> = redis.ask(&["KEYS", "shunt:{test}:lines.aside-*"]).unwrap();
    assert_eq!(aside.len(), 1);
    let left: i64 = redis.ask(&["TTL", &aside[0]]).unwrap();
    assert!(left > 0, "it goes some day");
    redis.ask::<()>(&["SET", "shunt:{test}:lines", "no hash"]).unwrap();
    one.journal.put(&row("a", None, 10_000, 1));
    let event = timeout(Duration::from_secs(10), one.events.recv()).await;
    assert!(matches!(event, Ok(Some(Event::Emptied))), "{event:?}");
    until(&one.journal, |status| status.pending == 0 && status.error.is_none()).await;
    assert_eq!(one.reader.of_call(b"a").await.len(), 1);
}

#[tokio::test]
async fn a_row_that_cannot_be_read_is_set_aside() {
    let redis = Redis::start("shared-bad");
    let one = active(&redis, "one", None).await;
    one.journal.put(&row("a", None, 10_000, 1));
    one.journal.put(&row("b", None, 10_004, 1));
    assert!(one.journal.kept().await);
    redis.ask::<()>(&["HSET", "shunt:{test}:lines", "a tag -", "{"]).unwrap();
    assert!(one.reader.of_call(b"a").await.is_empty());
    until(&one.journal, |status| status.pending == 0).await;
    let bad: Vec<String> = redis.ask(&["LRANGE", "shunt:{test}:bad", "0", "-1"]).unwrap();
    assert!(bad.len() == 1 && bad[0].ends_with(": {"), "{bad:?}");
    assert_eq!(all(&one.reader).await.len(), 1);
}
