//! SRTP and SRTCP (RFC 3711; with AES-GCM RFC 7714): what is sent to a browser, and the reports that come from it.
//!
//! One [`Protector`] is the only owner of the keys that encrypt, so that no nonce is used twice: it remembers which packet indices of each SSRC
//! it has used, and counts its SRTCP packets in one sequence. The ciphers are those of aws-lc-rs; no I/O, no clock.
#![forbid(unsafe_code)]

use aws_lc_rs::aead::{AES_128_GCM, AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use aws_lc_rs::cipher::{AES_128, AES_256, EncryptingKey, EncryptionContext, UnboundCipherKey};
use aws_lc_rs::hmac;
use shunt_rtp::Window;
use std::collections::BTreeMap;
use thiserror::Error;
use zeroize::{Zeroize as _, Zeroizing};

/// Octets of a tag (RFC 7714 section 14.2, RFC 3711 section 5.2).
const GCM_TAG: usize = 16;
const HMAC_TAG: usize = 10;
/// Octets of SRTCP that are not encrypted at its beginning, and of its index.
const RTCP_HEAD: usize = 8;
const INDEX: usize = 4;
/// The flag of SRTCP that is encrypted, beside its index.
const ENCRYPTED: u32 = 1 << 31;
/// SSRCs that are remembered.
const SSRCS: usize = 1024;
/// Labels of the key derivation (RFC 3711 section 4.3.2), and how far those of SRTCP are from them.
const CIPHER: u8 = 0;
const AUTHENTICATION: u8 = 1;
const SALT: u8 = 2;
const OF_RTCP: u8 = 3;

/// Why a packet is not encrypted or decrypted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum SrtpError {
    #[error("a packet with this index was encrypted before")]
    Used,
    #[error("all indices of this key are used")]
    Exhausted,
    #[error("more than {SSRCS} SSRCs")]
    Ssrcs,
    #[error("the packet is too short")]
    Short,
    #[error("the tag is wrong")]
    Tag,
    #[error("the packet came before")]
    Replayed,
    #[error("the cipher refuses the key or the packet")]
    Cipher,
}

/// A protection profile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Profile {
    Aes128CmHmacSha1_80,
    AeadAes128Gcm,
    AeadAes256Gcm,
}

impl Profile {
    /// As the registry of DTLS-SRTP has it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Aes128CmHmacSha1_80 => "AES_CM_128_HMAC_SHA1_80",
            Self::AeadAes128Gcm => "AEAD_AES_128_GCM",
            Self::AeadAes256Gcm => "AEAD_AES_256_GCM",
        }
    }

    /// Octets of a master key and of a master salt.
    #[must_use]
    pub fn lengths(self) -> (usize, usize) {
        match self {
            Self::Aes128CmHmacSha1_80 => (16, 14),
            Self::AeadAes128Gcm => (16, 12),
            Self::AeadAes256Gcm => (32, 12),
        }
    }
}

/// The master key and salt of one direction; wiped when dropped.
pub struct Master {
    profile: Profile,
    key: Zeroizing<Vec<u8>>,
    salt: Zeroizing<Vec<u8>>,
}

impl Master {
    /// The keys of client and server in what DTLS exports (RFC 5764 section 4.2); `None` if the length is another.
    #[must_use]
    pub fn pair(profile: Profile, exported: &[u8]) -> Option<(Self, Self)> {
        let (key, salt) = profile.lengths();
        if exported.len() != 2 * (key + salt) {
            return None;
        }
        let (keys, salts) = exported.split_at(2 * key);
        let of = |at: usize| Self {
            profile,
            key: Zeroizing::new(keys[at * key..][..key].to_vec()),
            salt: Zeroizing::new(salts[at * salt..][..salt].to_vec()),
        };
        Some((of(0), of(1)))
    }

    /// Write what DTLS exports: the keys of client and server.
    #[must_use]
    pub fn export(client: &Self, server: &Self) -> Zeroizing<Vec<u8>> {
        Zeroizing::new([&client.key[..], &server.key, &client.salt, &server.salt].concat())
    }

    #[must_use]
    pub fn profile(&self) -> Profile {
        self.profile
    }

    /// Key material for a label (RFC 3711 section 4.3, with a key derivation rate of 0).
    fn derive(&self, label: u8, octets: usize) -> Result<Zeroizing<Vec<u8>>, SrtpError> {
        let mut iv = [0; 16];
        iv[..self.salt.len()].copy_from_slice(&self.salt);
        iv[7] ^= label;
        let algorithm = if self.key.len() == 32 { &AES_256 } else { &AES_128 };
        let key = UnboundCipherKey::new(algorithm, &self.key).map_err(|_| SrtpError::Cipher)?;
        let key = EncryptingKey::ctr(key).map_err(|_| SrtpError::Cipher)?;
        let mut out = Zeroizing::new(vec![0; octets]);
        let context = EncryptionContext::Iv128(iv.into());
        key.less_safe_encrypt(&mut out, context).map_err(|_| SrtpError::Cipher)?;
        iv.zeroize();
        Ok(out)
    }

    /// The cipher of SRTP, or of SRTCP; its key schedule is made here, once.
    fn cipher(&self, rtcp: bool) -> Result<Cipher, SrtpError> {
        let base = if rtcp { OF_RTCP } else { 0 };
        let (key, salt) = self.profile.lengths();
        let key = self.derive(base + CIPHER, key)?;
        let derived = self.derive(base + SALT, salt)?;
        let mut salt = [0; 16];
        match self.profile {
            Profile::Aes128CmHmacSha1_80 => {
                salt[..14].copy_from_slice(&derived);
                let key = UnboundCipherKey::new(&AES_128, &key).map_err(|_| SrtpError::Cipher)?;
                let authentication = self.derive(base + AUTHENTICATION, 20)?;
                Ok(Cipher::Cm {
                    key: EncryptingKey::ctr(key).map_err(|_| SrtpError::Cipher)?,
                    salt: Zeroizing::new(salt),
                    authentication: hmac::Key::new(hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY, &authentication),
                })
            }
            Profile::AeadAes128Gcm | Profile::AeadAes256Gcm => {
                salt[..12].copy_from_slice(&derived);
                let algorithm = if key.len() == 32 { &AES_256_GCM } else { &AES_128_GCM };
                let key = UnboundKey::new(algorithm, &key).map_err(|_| SrtpError::Cipher)?;
                Ok(Cipher::Gcm {
                    key: LessSafeKey::new(key),
                    salt: Zeroizing::new(salt),
                })
            }
        }
    }
}

/// One key of a session. There are four of a session: they need not be small.
#[allow(clippy::large_enum_variant)]
enum Cipher {
    Gcm {
        key: LessSafeKey,
        salt: Zeroizing<[u8; 16]>,
    },
    Cm {
        key: EncryptingKey,
        salt: Zeroizing<[u8; 16]>,
        authentication: hmac::Key,
    },
}

/// The nonce of AES-GCM (RFC 7714 sections 8.1 and 9.1): two octets of zero, the SSRC, and 48 bits of index.
fn gcm_nonce(salt: &[u8; 16], ssrc: u32, index: u64) -> Nonce {
    let mut nonce = [0; 12];
    nonce[2..6].copy_from_slice(&ssrc.to_be_bytes());
    nonce[6..].copy_from_slice(&index.to_be_bytes()[2..]);
    nonce.iter_mut().zip(salt).for_each(|(octet, salt)| *octet ^= salt);
    Nonce::assume_unique_for_key(nonce)
}

/// The first counter of AES-CM (RFC 3711 section 4.1.1).
fn cm_counter(salt: &[u8; 16], ssrc: u32, index: u64) -> EncryptionContext {
    let mut counter = [0; 16];
    counter[4..8].copy_from_slice(&ssrc.to_be_bytes());
    counter[8..14].copy_from_slice(&index.to_be_bytes()[2..]);
    counter.iter_mut().zip(salt).for_each(|(octet, salt)| *octet ^= salt);
    EncryptionContext::Iv128(counter.into())
}

fn ssrc_at(packet: &[u8], at: usize) -> Option<u32> {
    packet.get(at..at + 4)?.try_into().ok().map(u32::from_be_bytes)
}

/// What encrypts towards a browser.
pub struct Protector {
    rtp: Cipher,
    rtcp: Cipher,
    used: BTreeMap<u32, Window>,
    index: u32,
}

impl Protector {
    /// # Errors
    /// The library takes no key of this kind.
    pub fn new(master: &Master) -> Result<Self, SrtpError> {
        Ok(Self {
            rtp: master.cipher(false)?,
            rtcp: master.cipher(true)?,
            used: BTreeMap::new(),
            index: 0,
        })
    }

    /// Encrypt the RTP packet that is in a buffer from `start` on, in place, and append its tag. `header`: its octets that stay readable,
    /// header extensions among them; `index`: its sequence number, extended by the rollover counter (RFC 3711 section 3.3.1).
    ///
    /// # Errors
    /// This index was used before, or is so far back that it cannot be told; the buffer is unchanged then.
    pub fn rtp(&mut self, buffer: &mut Vec<u8>, start: usize, header: usize, index: u64) -> Result<(), SrtpError> {
        let ssrc = ssrc_at(buffer, start + 8).ok_or(SrtpError::Short)?;
        let number = i64::try_from(index)
            .ok()
            .filter(|index| *index < 1 << 48)
            .ok_or(SrtpError::Exhausted)?;
        if buffer.len() < start + header {
            return Err(SrtpError::Short);
        }
        if self.used.len() >= SSRCS && !self.used.contains_key(&ssrc) {
            return Err(SrtpError::Ssrcs);
        }
        if !self.used.entry(ssrc).or_default().note(number) {
            return Err(SrtpError::Used);
        }
        match &self.rtp {
            Cipher::Gcm { key, salt } => {
                let (head, body) = buffer[start..].split_at_mut(header);
                let nonce = gcm_nonce(salt, ssrc, index);
                let tag = key.seal_in_place_separate_tag(nonce, Aad::from(&*head), body);
                buffer.extend_from_slice(tag.map_err(|_| SrtpError::Cipher)?.as_ref());
            }
            Cipher::Cm { key, salt, authentication } => {
                let counter = cm_counter(salt, ssrc, index);
                let encrypted = key.less_safe_encrypt(&mut buffer[start + header..], counter);
                encrypted.map_err(|_| SrtpError::Cipher)?;
                let mut context = hmac::Context::with_key(authentication);
                context.update(&buffer[start..]);
                context.update(&index.to_be_bytes()[2..6]);
                buffer.extend_from_slice(&context.sign().as_ref()[..HMAC_TAG]);
            }
        }
        Ok(())
    }

    /// Encrypt the RTCP compound that is in a buffer from `start` on, in place, and append index and tag.
    ///
    /// # Errors
    /// It is no RTCP, or 2^31 packets were encrypted.
    pub fn rtcp(&mut self, buffer: &mut Vec<u8>, start: usize) -> Result<(), SrtpError> {
        let ssrc = ssrc_at(buffer, start + 4).ok_or(SrtpError::Short)?;
        let index = self.index;
        if index >= ENCRYPTED {
            return Err(SrtpError::Exhausted);
        }
        self.index += 1;
        let word = (index | ENCRYPTED).to_be_bytes();
        match &self.rtcp {
            Cipher::Gcm { key, salt } => {
                let (head, body) = buffer[start..].split_at_mut(RTCP_HEAD);
                let nonce = gcm_nonce(salt, ssrc, index.into());
                let tag = key.seal_in_place_separate_tag(nonce, Aad::from([&*head, &word[..]].concat()), body);
                buffer.extend_from_slice(tag.map_err(|_| SrtpError::Cipher)?.as_ref());
                buffer.extend_from_slice(&word);
            }
            Cipher::Cm { key, salt, authentication } => {
                let counter = cm_counter(salt, ssrc, index.into());
                let encrypted = key.less_safe_encrypt(&mut buffer[start + RTCP_HEAD..], counter);
                encrypted.map_err(|_| SrtpError::Cipher)?;
                buffer.extend_from_slice(&word);
                let tag = hmac::sign(authentication, &buffer[start..]);
                buffer.extend_from_slice(&tag.as_ref()[..HMAC_TAG]);
            }
        }
        Ok(())
    }
}

/// What decrypts SRTCP.
pub struct Unprotector {
    rtcp: Cipher,
    seen: BTreeMap<u32, Window>,
}

impl Unprotector {
    /// # Errors
    /// The library takes no key of this kind.
    pub fn new(master: &Master) -> Result<Self, SrtpError> {
        Ok(Self {
            rtcp: master.cipher(true)?,
            seen: BTreeMap::new(),
        })
    }

    /// Decrypt an SRTCP packet into a buffer, which is emptied first.
    ///
    /// # Errors
    /// It is not of the owner of the key, came before, or is so far back that it cannot be told.
    pub fn rtcp(&mut self, packet: &[u8], out: &mut Vec<u8>) -> Result<(), SrtpError> {
        out.clear();
        let ssrc = ssrc_at(packet, 4).ok_or(SrtpError::Short)?;
        let trailer = match &self.rtcp {
            Cipher::Gcm { .. } => INDEX,
            Cipher::Cm { .. } => INDEX + HMAC_TAG,
        };
        let at = packet
            .len()
            .checked_sub(trailer)
            .filter(|at| *at >= RTCP_HEAD)
            .ok_or(SrtpError::Short)?;
        let word = ssrc_at(packet, at).ok_or(SrtpError::Short)?;
        let index = word & !ENCRYPTED;
        match self.seen.get(&ssrc) {
            Some(window) if !window.is_new(index.into()) => return Err(SrtpError::Replayed),
            None if self.seen.len() >= SSRCS => return Err(SrtpError::Ssrcs),
            _ => {}
        }
        match &self.rtcp {
            Cipher::Gcm { key, salt } => {
                let body = packet
                    .get(RTCP_HEAD..at)
                    .filter(|body| body.len() >= GCM_TAG)
                    .ok_or(SrtpError::Short)?;
                let nonce = gcm_nonce(salt, ssrc, index.into());
                if word & ENCRYPTED == 0 {
                    // RFC 7714 section 9.3: all but the tag is authenticated only.
                    let (clear, tag) = packet[..at].split_at(at - GCM_TAG);
                    let associated = Aad::from([clear, &word.to_be_bytes()].concat());
                    key.open_separate_gather(nonce, associated, &[], tag, &mut [])
                        .map_err(|_| SrtpError::Tag)?;
                    out.extend_from_slice(clear);
                } else {
                    let (sealed, tag) = body.split_at(body.len() - GCM_TAG);
                    out.extend_from_slice(&packet[..RTCP_HEAD]);
                    out.resize(RTCP_HEAD + sealed.len(), 0);
                    let associated = Aad::from([&packet[..RTCP_HEAD], &word.to_be_bytes()].concat());
                    let opened = key.open_separate_gather(nonce, associated, sealed, tag, &mut out[RTCP_HEAD..]);
                    opened.map_err(|_| SrtpError::Tag)?;
                }
            }
            Cipher::Cm { key, salt, authentication } => {
                let (signed, tag) = packet.split_at(at + INDEX);
                let due = hmac::sign(authentication, signed);
                aws_lc_rs::constant_time::verify_slices_are_equal(&due.as_ref()[..HMAC_TAG], tag).map_err(|_| SrtpError::Tag)?;
                out.extend_from_slice(&packet[..at]);
                if word & ENCRYPTED != 0 {
                    let counter = cm_counter(salt, ssrc, index.into());
                    let decrypted = key.less_safe_encrypt(&mut out[RTCP_HEAD..], counter);
                    decrypted.map_err(|_| SrtpError::Cipher)?;
                }
            }
        }
        self.seen.entry(ssrc).or_default().note(index.into());
        Ok(())
    }
}
