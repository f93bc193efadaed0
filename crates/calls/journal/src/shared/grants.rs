//! The group's lease: each request to Redis is one script.

use super::SharedSettings;
use super::link::{Link, LinkError, TIMEOUT};
use redis::Script;
use shunt_standby::{Answer, Ask, Holder};
use std::sync::atomic::Ordering;
use std::time::Duration;

/// KEYS: lease, token. ARGV: the holder, milliseconds, the least token, the lease whose holder is dead or '', 1: it may be taken, 1: leave
/// an emptied store alone.
const TAKE: &str = "
local held = redis.call('GET', KEYS[1])
if held and (ARGV[4] == '' or held ~= ARGV[4]) then return {0, held, redis.call('PTTL', KEYS[1])} end
local last = redis.call('GET', KEYS[2])
if ARGV[5] == '0' or (ARGV[6] == '1' and not last) then return {0, '', 0} end
local token = math.max(tonumber(last or '0'), tonumber(ARGV[3])) + 1
local body = cjson.decode(ARGV[1])
body['token'] = token
local text = cjson.encode(body)
redis.call('SET', KEYS[2], string.format('%d', token))
redis.call('SET', KEYS[1], text, 'PX', ARGV[2])
return {token, text, 0}
";
/// KEYS: lease, token. ARGV: token, the lease, milliseconds. 1: extended; 0: another has it; -1: the store was emptied.
const RENEW: &str = "
local last = redis.call('GET', KEYS[2])
if not last then return -1 end
if last ~= ARGV[1] then return 0 end
if redis.call('GET', KEYS[1]) == ARGV[2] then redis.call('PEXPIRE', KEYS[1], ARGV[3])
else redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3]) end
return 1
";
const RELEASE: &str = "
if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end
return 0
";
/// Flag of Redis 7 for a script that may write although the memory is full.
const ALLOW_OOM: &str = "#!lua flags=allow-oom\n";

/// Requests the lease of a group.
pub struct Grants {
    link: Link,
    holder: Holder,
    length: Duration,
}

impl Grants {
    #[must_use]
    pub fn new(settings: SharedSettings, holder: Holder, length: Duration) -> Self {
        let link = Link::new(settings);
        Self { link, holder, length }
    }

    #[must_use]
    pub fn holder(&self) -> &Holder {
        &self.holder
    }

    /// Sends a request. The second part is Redis's text of a failure.
    pub async fn ask(&mut self, question: &Ask) -> (Answer, Option<String>) {
        let answer = match question {
            Ask::Take {
                may_take,
                least,
                instead_of,
                spare_emptied,
            } => {
                let dead = instead_of.as_deref().unwrap_or_default();
                match self.take("", *may_take, *least, dead, *spare_emptied).await {
                    Err(error) if error.is_out_of_memory() => self.take(ALLOW_OOM, *may_take, *least, dead, *spare_emptied).await,
                    answer => answer,
                }
            }
            Ask::Renew { token, text } => self.renew(*token, text).await,
        };
        match answer {
            Ok(answer) => (answer, None),
            Err(error) => (Answer::Failed, Some(format!("{}: {error}", self.link.settings.name))),
        }
    }

    async fn take(&mut self, head: &str, may_take: bool, least: u64, dead: &str, spare: bool) -> Result<Answer, LinkError> {
        let script = Script::new(&format!("{head}{TAKE}"));
        let mut call = script.prepare_invoke();
        call.key(self.link.settings.key("lease")).key(self.link.settings.key("token"));
        call.arg(serde_json::json!(self.holder).to_string())
            .arg(self.milliseconds())
            .arg(least);
        call.arg(dead).arg(u8::from(may_take)).arg(u8::from(spare));
        let (token, text, left): (u64, String, i64) = self.link.ask(TIMEOUT, async |redis| call.invoke_async(redis).await).await?;
        Ok(match (token, text.is_empty()) {
            (0, true) => Answer::Free,
            (0, false) => Answer::Held {
                text,
                left: Duration::from_millis(u64::try_from(left).unwrap_or(0)),
            },
            _ => {
                self.link.settings.token.store(token, Ordering::Relaxed);
                Answer::Granted { token, text }
            }
        })
    }

    async fn renew(&mut self, token: u64, text: &str) -> Result<Answer, LinkError> {
        let script = Script::new(RENEW);
        let mut call = script.prepare_invoke();
        call.key(self.link.settings.key("lease")).key(self.link.settings.key("token"));
        call.arg(token).arg(text).arg(self.milliseconds());
        let answer: i64 = self.link.ask(TIMEOUT, async |redis| call.invoke_async(redis).await).await?;
        Ok(match answer {
            1 => Answer::Renewed,
            0 => Answer::Another,
            _ => Answer::Emptied,
        })
    }

    /// Lets another agent take over at once.
    ///
    /// # Errors
    /// Redis does not answer: the lease then expires.
    pub async fn release(&mut self, text: &str) -> Result<(), String> {
        let script = Script::new(RELEASE);
        let mut call = script.prepare_invoke();
        call.key(self.link.settings.key("lease")).arg(text);
        let released: Result<i64, LinkError> = self.link.ask(TIMEOUT, async |redis| call.invoke_async(redis).await).await;
        released.map(drop).map_err(|error| format!("{}: {error}", self.link.settings.name))
    }

    fn milliseconds(&self) -> u64 {
        u64::try_from(self.length.as_millis()).unwrap_or(u64::MAX)
    }
}
