//! The SRTP keys of a session: DTLS hands them over here, and the library gets other ones for what it sends. So all that is encrypted towards a
//! browser has one owner, and no nonce is used twice; what the library has encrypted is opened, and encrypted again.

use shunt_srtp::{Master, Profile};
use std::cell::RefCell;
use std::fmt;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Instant;
use str0m::config::{CryptoProvider, DtlsCert, KeyingMaterial};
use str0m::crypto::dtls::{DtlsImplError, DtlsInstance, DtlsOutput, DtlsProvider, DtlsVersion, ProtocolVersion, SrtpProfile};
use str0m::crypto::{CryptoError, from_feature_flags};
use zeroize::Zeroizing;

/// The keys of one session.
pub struct Keys {
    /// What the edge encrypts with.
    pub local: Master,
    /// What the browser encrypts with.
    pub remote: Master,
    /// What the library encrypts with, instead of the edge's.
    pub library: Master,
}

/// Where the keys of a session are put.
pub type Place = Arc<Mutex<Option<Keys>>>;

/// Take what has been put there.
pub fn take(place: &Place) -> Option<Keys> {
    place.lock().unwrap_or_else(PoisonError::into_inner).take()
}

thread_local! {
    /// The place of the DTLS association that was made last on this thread.
    static LAST: RefCell<Option<Place>> = const { RefCell::new(None) };
}

/// The place of the session that was built last on this thread.
pub fn place_of_last() -> Place {
    LAST.take().unwrap_or_default()
}

/// The library's cryptography, with DTLS of OpenSSL that hands its keys over: clients' certificates may be of ECDSA or of RSA.
pub fn provider() -> Arc<CryptoProvider> {
    static DTLS: OnceLock<Provider> = OnceLock::new();
    let provider = from_feature_flags();
    let dtls_provider = DTLS.get_or_init(|| Provider(str0m_openssl::default_provider().dtls_provider));
    Arc::new(CryptoProvider { dtls_provider, ..provider })
}

#[derive(Debug)]
struct Provider(&'static dyn DtlsProvider);

impl DtlsProvider for Provider {
    fn generate_certificate(&self) -> Option<DtlsCert> {
        self.0.generate_certificate()
    }

    fn new_dtls(
        &self,
        certificate: &DtlsCert,
        now: Instant,
        version: DtlsVersion,
        mtu: Option<usize>,
    ) -> Result<Box<dyn DtlsInstance>, CryptoError> {
        let dtls = self.0.new_dtls(certificate, now, version, mtu)?;
        let place = Place::default();
        LAST.set(Some(Arc::clone(&place)));
        Ok(Box::new(Instance { dtls, place }))
    }

    fn is_test(&self) -> bool {
        self.0.is_test()
    }
}

struct Instance {
    dtls: Box<dyn DtlsInstance>,
    place: Place,
}

impl fmt::Debug for Instance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Instance").finish_non_exhaustive()
    }
}

impl Instance {
    /// Keep the keys; those for the library.
    fn keep(&self, exported: &[u8], profile: SrtpProfile) -> Option<KeyingMaterial> {
        let profile = match profile {
            SrtpProfile::AES128_CM_SHA1_80 => Profile::Aes128CmHmacSha1_80,
            SrtpProfile::AEAD_AES_128_GCM => Profile::AeadAes128Gcm,
            SrtpProfile::AEAD_AES_256_GCM => Profile::AeadAes256Gcm,
            _ => return None,
        };
        let mut random = Zeroizing::new(vec![0; exported.len()]);
        getrandom::fill(&mut random).ok()?;
        let (library, _) = Master::pair(profile, &random)?;
        let (client, server) = Master::pair(profile, exported)?;
        let active = self.dtls.is_active();
        let (local, remote) = if active { (client, server) } else { (server, client) };
        let given = if active {
            Master::export(&library, &remote)
        } else {
            Master::export(&remote, &library)
        };
        let keys = Keys { local, remote, library };
        *self.place.lock().unwrap_or_else(PoisonError::into_inner) = Some(keys);
        Some(KeyingMaterial::new(&given))
    }
}

impl DtlsInstance for Instance {
    fn set_active(&mut self, active: bool) {
        self.dtls.set_active(active);
    }

    fn handle_packet(&mut self, packet: &[u8]) -> Result<(), DtlsImplError> {
        self.dtls.handle_packet(packet)
    }

    fn poll_output<'a>(&mut self, buffer: &'a mut [u8]) -> DtlsOutput<'a> {
        match self.dtls.poll_output(buffer) {
            DtlsOutput::KeyingMaterial(exported, profile) => {
                // Without keys of its own the library must not have the browser's: nothing can be sent then, and the session ends in time.
                let given = self.keep(&exported, profile);
                let none = || KeyingMaterial::new(&vec![0; exported.len()]);
                DtlsOutput::KeyingMaterial(given.unwrap_or_else(none), profile)
            }
            output => output,
        }
    }

    fn handle_timeout(&mut self, now: Instant) -> Result<(), DtlsImplError> {
        self.dtls.handle_timeout(now)
    }

    fn send_application_data(&mut self, data: &[u8]) -> Result<(), DtlsImplError> {
        self.dtls.send_application_data(data)
    }

    fn is_active(&self) -> bool {
        self.dtls.is_active()
    }

    fn protocol_version(&self) -> Option<ProtocolVersion> {
        self.dtls.protocol_version()
    }

    fn is_closing(&self) -> bool {
        self.dtls.is_closing()
    }

    fn is_closed(&self) -> bool {
        self.dtls.is_closed()
    }

    fn close(&mut self) -> Result<(), DtlsImplError> {
        self.dtls.close()
    }
}
