//! The calls to the kernel's links that virtual functions need; tests implement them on their own card.

use std::{fmt, os::fd::BorrowedFd};

use fabricbios_lease::StepError;

use crate::netlink::{By, Link, Netlink, VfSetting, VfState};

/// Links of the node's network namespace.
pub trait Links: fmt::Debug + Send + Sync {
    /// The interface; `None` if there is none.
    ///
    /// # Errors
    /// The kernel refuses the request; the error has its errno and text.
    fn link(&self, by: By<'_>) -> Result<Option<Link>, StepError>;

    /// The index of the interface with this name. Waits for no lock that a tenant can keep busy.
    ///
    /// # Errors
    /// The kernel refuses the request; the error has its errno and text.
    fn index_of(&self, name: &str) -> Result<Option<u32>, StepError>;

    /// Sets an interface up.
    ///
    /// # Errors
    /// The kernel refuses the request; the error has its errno and text.
    fn set_up(&self, by: By<'_>) -> Result<(), StepError>;

    /// Renames an interface.
    ///
    /// # Errors
    /// The kernel refuses the request; the error has its errno and text.
    fn rename(&self, index: u32, name: &str) -> Result<(), StepError>;

    /// Moves an interface to another network namespace.
    ///
    /// # Errors
    /// The name exists in that namespace, or the kernel refuses the request.
    fn move_to(&self, index: u32, namespace: BorrowedFd<'_>) -> Result<(), StepError>;

    /// The settings of all virtual functions of a card.
    ///
    /// # Errors
    /// The kernel refuses the request; the error has its errno and text.
    fn functions(&self, card: u32) -> Result<Vec<VfState>, StepError>;

    /// Changes one setting of a virtual function.
    ///
    /// # Errors
    /// The card's driver refuses the setting.
    fn set_function(&self, card: u32, number: u32, setting: VfSetting) -> Result<(), StepError>;
}

impl Links for Netlink {
    fn link(&self, by: By<'_>) -> Result<Option<Link>, StepError> {
        Ok(self.link(by)?)
    }

    fn index_of(&self, name: &str) -> Result<Option<u32>, StepError> {
        Ok(Self::index_of(name)?)
    }

    fn set_up(&self, by: By<'_>) -> Result<(), StepError> {
        Ok(self.set_up(by, true)?)
    }

    fn rename(&self, index: u32, name: &str) -> Result<(), StepError> {
        Ok(self.set_name(index, name)?)
    }

    fn move_to(&self, index: u32, namespace: BorrowedFd<'_>) -> Result<(), StepError> {
        Ok(self.move_to(index, namespace, None)?)
    }

    fn functions(&self, card: u32) -> Result<Vec<VfState>, StepError> {
        Ok(self.vfs(card)?)
    }

    fn set_function(&self, card: u32, number: u32, setting: VfSetting) -> Result<(), StepError> {
        Ok(self.set_vf(card, number, setting)?)
    }
}
