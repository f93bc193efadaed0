//! XDP features of each interface, from the netdev family of generic netlink (Linux 6.3).

use netlink_packet_core::{
    DecodeError, DefaultNla, Emitable, Nla, NlaBuffer, NlasIterator, Parseable, ParseableParametrized, emit_u32, emit_u64, parse_u32,
    parse_u64,
};
use netlink_packet_generic::ctrl::nlas::{GenlCtrlAttrs, McastGrpAttrs};
use netlink_packet_generic::ctrl::{GenlCtrl, GenlCtrlCmd};
use netlink_packet_generic::{GenlFamily, GenlHeader, GenlMessage};
use netlink_sys::protocols::NETLINK_GENERIC;
use tracing::{debug, info, warn};

use super::channel::{Channel, Received, Subscription};
use crate::kernel::KernelError;

// linux/netdev.h
const FAMILY: &str = "netdev";
const NETDEV_CMD_DEV_GET: u8 = 1;
const NETDEV_A_DEV_IFINDEX: u16 = 1;
const NETDEV_A_DEV_XDP_FEATURES: u16 = 3;
const NETDEV_XDP_ACT_NDO_XMIT: u64 = 4;
const EVENT_GROUP: &str = "mgmt";

#[derive(Clone, Debug, PartialEq, Eq)]
enum DeviceAttribute {
    IfIndex(u32),
    XdpFeatures(u64),
    Other(DefaultNla),
}

impl Nla for DeviceAttribute {
    fn value_len(&self) -> usize {
        match self {
            Self::IfIndex(_) => 4,
            Self::XdpFeatures(_) => 8,
            Self::Other(other) => other.value_len(),
        }
    }

    fn kind(&self) -> u16 {
        match self {
            Self::IfIndex(_) => NETDEV_A_DEV_IFINDEX,
            Self::XdpFeatures(_) => NETDEV_A_DEV_XDP_FEATURES,
            Self::Other(other) => other.kind(),
        }
    }

    fn emit_value(&self, buffer: &mut [u8]) {
        // The caller provides value_len() bytes.
        let _ = match self {
            Self::IfIndex(value) => emit_u32(buffer, *value),
            Self::XdpFeatures(value) => emit_u64(buffer, *value),
            Self::Other(other) => {
                other.emit_value(buffer);
                Ok(())
            }
        };
    }
}

impl<'a, T: AsRef<[u8]> + ?Sized> Parseable<NlaBuffer<&'a T>> for DeviceAttribute {
    fn parse(buffer: &NlaBuffer<&'a T>) -> Result<Self, DecodeError> {
        Ok(match buffer.kind() {
            NETDEV_A_DEV_IFINDEX => Self::IfIndex(parse_u32(buffer.value())?),
            NETDEV_A_DEV_XDP_FEATURES => Self::XdpFeatures(parse_u64(buffer.value())?),
            _ => Self::Other(DefaultNla::parse(buffer)?),
        })
    }
}

/// `NETDEV_CMD_DEV_GET`, and its answer.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Device(Vec<DeviceAttribute>);

impl GenlFamily for Device {
    fn family_name() -> &'static str {
        FAMILY
    }

    fn command(&self) -> u8 {
        NETDEV_CMD_DEV_GET
    }

    fn version(&self) -> u8 {
        1
    }
}

impl Emitable for Device {
    fn buffer_len(&self) -> usize {
        self.0.as_slice().buffer_len()
    }

    fn emit(&self, buffer: &mut [u8]) {
        self.0.as_slice().emit(buffer);
    }
}

impl ParseableParametrized<[u8], GenlHeader> for Device {
    fn parse_with_param(buffer: &[u8], _: GenlHeader) -> Result<Self, DecodeError> {
        NlasIterator::new(buffer)
            .map(|attribute| DeviceAttribute::parse(&attribute?))
            .collect::<Result<_, _>>()
            .map(Self)
    }
}

/// The netdev family, if the kernel has it.
pub(super) struct Features {
    requests: Channel,
    family: Option<u16>,
    changes: Option<Subscription>,
}

impl Features {
    pub(super) fn open() -> Result<Self, KernelError> {
        let mut requests = Channel::open(NETLINK_GENERIC)?;
        let wanted = GenlCtrl {
            cmd: GenlCtrlCmd::GetFamily,
            nlas: vec![GenlCtrlAttrs::FamilyName(FAMILY.into())],
        };
        let (mut family, mut group) = (None, None);
        let asked = requests.ask(GenlMessage::from_payload(wanted), 0, |message: GenlMessage<GenlCtrl>| {
            for attribute in message.payload.nlas {
                match attribute {
                    GenlCtrlAttrs::FamilyId(id) => family = Some(id),
                    GenlCtrlAttrs::McastGroups(groups) => group = groups.iter().find_map(|group| event_group(group)),
                    _ => {}
                }
            }
        });
        match asked {
            Ok(()) => {}
            Err(KernelError::Rejected { .. }) => info!("the kernel does not report the XDP features of interfaces (before Linux 6.3)"),
            Err(error) => return Err(error),
        }
        let changes = group.map(|group| Subscription::open(NETLINK_GENERIC, &[group])).transpose()?;
        Ok(Self { requests, family, changes })
    }

    /// Returns whether an interface sends frames that native XDP redirects to it; `None` if the kernel does not tell.
    pub(super) fn xdp_transmit(&mut self, ifindex: u32) -> Option<bool> {
        let family = self.family?;
        let mut message = GenlMessage::from_payload(Device(vec![DeviceAttribute::IfIndex(ifindex)]));
        message.set_resolved_family_id(family);
        let mut features = None;
        let asked = self.requests.ask(message, 0, |message: GenlMessage<Device>| {
            features = message.payload.0.iter().find_map(|attribute| match attribute {
                DeviceAttribute::XdpFeatures(features) => Some(*features),
                _ => None,
            });
        });
        if let Err(error) = asked {
            debug!(%error, ifindex, "XDP features");
        }
        features.map(|features| features & NETDEV_XDP_ACT_NDO_XMIT != 0)
    }

    pub(super) fn changes(&self) -> Option<&Subscription> {
        self.changes.as_ref()
    }

    /// Returns whether any interface's features have changed since the last call.
    pub(super) fn take_changes(&mut self) -> bool {
        let Some(changes) = &mut self.changes else { return false };
        let mut changed = false;
        loop {
            match changes.receive() {
                Ok(Received::Messages(_) | Received::Lost) => changed = true,
                Ok(Received::Nothing) => return changed,
                Err(error) => {
                    warn!(%error, "changes of XDP features cannot be received");
                    return true;
                }
            }
        }
    }
}

fn event_group(group: &[McastGrpAttrs]) -> Option<u32> {
    let named = group
        .iter()
        .any(|attribute| matches!(attribute, McastGrpAttrs::Name(name) if name == EVENT_GROUP));
    group.iter().find_map(|attribute| match attribute {
        McastGrpAttrs::Id(id) if named => Some(*id),
        _ => None,
    })
}
