//! A card that consists of files in a directory. The handlers of the calls do what the kernel would do.

use std::{
    fmt,
    fs::{self, File},
    io,
    ops::Deref,
    os::{
        fd::BorrowedFd,
        unix::fs::{FileExt, symlink},
    },
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
};

use fabricbios_contract::testing::{self, Calls, Fails};
use fabricbios_helper::{Failure, Handler, Supervisor};
use fabricbios_lease::{BindOrder, BindingId, Placement, Proof, Quantity, StepError};
use fabricbios_sriov::{
    Claims,
    netlink::{By, Link, VfSetting, VfState},
    vf::{Act, Card, CardConfig, EndHolders, FunctionCall, Links, Places, VfEnd},
};
use fabricbios_wire::{
    Binding, LeaseId, MacAddress, NetBinding, NetTerms, PciFunction, ResourceId, Transport,
};
use nix::errno::Errno;
use tempfile::TempDir;

use crate::suite::Machine;

pub(crate) const CARD: &str = "0000:01:00.0";
pub(crate) const FUNCTIONS: [&str; 2] = ["0000:01:10.0", "0000:01:10.2"];
pub(crate) const RESOURCE: ResourceId = ResourceId(5);
pub(crate) const CARD_INDEX: u32 = 2;

/// The imitation of the kernel.
pub(crate) struct Kernel {
    pub(crate) root: PathBuf,
    /// The driver of the card. The driver of its functions has `vf` appended to the name.
    driver: &'static str,
    /// The actions.
    pub(crate) calls: Calls,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    vfs: Vec<VfState>,
    links: Vec<Link>,
    next: u32,
    ignores: Option<String>,
}

impl fmt::Debug for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Kernel")
    }
}

impl Kernel {
    fn new(root: &Path, driver: &'static str) -> Self {
        let kernel = Self {
            root: root.into(),
            driver,
            calls: Calls::default(),
            state: Mutex::default(),
        };
        let device = kernel.device(CARD);
        for directory in [
            &*format!("bus/pci/drivers/{driver}"),
            &*format!("bus/pci/drivers/{driver}vf"),
            "bus/pci/drivers/vfio-pci",
            "bus/pci/drivers/e1000e",
            "class/net/pf0",
            "dev/vfio",
        ] {
            fs::create_dir_all(root.join(directory)).unwrap();
        }
        fs::create_dir_all(&device).unwrap();
        symlink(&device, root.join("class/net/pf0/device")).unwrap();
        symlink(format!("../../drivers/{driver}"), device.join("driver")).unwrap();
        for (file, text) in [
            ("sriov_totalvfs", "2"),
            ("sriov_numvfs", "0"),
            ("sriov_drivers_autoprobe", "1"),
        ] {
            fs::write(device.join(file), text).unwrap();
        }
        fs::write(root.join("class/net/pf0/speed"), "1000").unwrap();
        fs::write(root.join("class/net/pf0/carrier"), "1").unwrap();
        fs::write(root.join("class/net/pf0/address"), "52:54:00:77:00:04").unwrap();
        kernel.state.lock().unwrap().links.push(Link {
            index: CARD_INDEX,
            name: "pf0".into(),
            ..Link::default()
        });
        kernel.state.lock().unwrap().next = 10;
        kernel
    }

    pub(crate) fn device(&self, function: &str) -> PathBuf {
        self.root.join("bus/pci/devices").join(function)
    }

    pub(crate) fn is_bus_master(&self, function: &str) -> bool {
        let mut command = [0; 2];
        let config = File::open(self.device(function).join("config")).unwrap();
        config.read_exact_at(&mut command, 4).unwrap();
        command[0] & 4 != 0
    }

    pub(crate) fn set_bus_master(&self, function: &str, on: bool) {
        let config = File::options()
            .write(true)
            .open(self.device(function).join("config"));
        config
            .unwrap()
            .write_all_at(&[if on { 7 } else { 3 }, 0], 4)
            .unwrap();
    }

    pub(crate) fn driver(&self, function: &str) -> Option<String> {
        let link = fs::read_link(self.device(function).join("driver")).ok()?;
        Some(link.file_name().unwrap().to_str().unwrap().to_owned())
    }

    pub(crate) fn vf(&self, number: u32) -> VfState {
        self.state.lock().unwrap().vfs[number as usize]
    }

    pub(crate) fn links(&self) -> Vec<Link> {
        self.state.lock().unwrap().links.clone()
    }

    /// The actions since the last call.
    pub(crate) fn log(&self) -> Vec<String> {
        self.calls.taken()
    }

    /// Makes actions with this name fail; `None`: none fails.
    pub(crate) fn fails(&self, action: Option<&'static str>) {
        self.calls.fail(match action {
            Some(failing) => Fails::If(Box::new(move |action| action == failing)),
            None => Fails::Never,
        });
    }

    /// Makes the card accept this setting without keeping it.
    pub(crate) fn ignores(&self, setting: Option<&str>) {
        self.state.lock().unwrap().ignores = setting.map(str::to_owned);
    }

    /// Calls `happens` during the next action with this name.
    pub(crate) fn meanwhile(&self, action: &str, happens: impl FnOnce() + Send + 'static) {
        let action = action.to_owned();
        self.calls.before_next(move |it| it == action, happens);
    }

    /// Makes functions, as the card does.
    pub(crate) fn create(&self, count: usize) {
        for (number, function) in FUNCTIONS.iter().enumerate().take(count) {
            let device = self.device(function);
            let group = self
                .root
                .join(format!("kernel/iommu_groups/{}", 8 + number));
            fs::create_dir_all(group.join("devices").join(function)).unwrap();
            fs::create_dir_all(&device).unwrap();
            fs::write(self.root.join(format!("dev/vfio/{}", 8 + number)), "").unwrap();
            fs::write(device.join("config"), [0; 64]).unwrap();
            fs::write(device.join("driver_override"), "(null)").unwrap();
            symlink(group, device.join("iommu_group")).unwrap();
            let link = self.device(CARD).join(format!("virtfn{number}"));
            symlink(format!("../{function}"), link).unwrap();
            self.state.lock().unwrap().vfs.push(VfState {
                number: u32::try_from(number).unwrap(),
                mac: Some(MacAddress([0; 6])),
                vlan: Some(0),
                rate_mbps: Some(0),
                spoof_check: Some(true),
                trust: Some(false),
            });
        }
        fs::write(self.device(CARD).join("sriov_numvfs"), count.to_string()).unwrap();
    }

    pub(crate) fn bind(&self, function: &str, driver: &str) {
        let device = self.device(function);
        symlink(format!("../../drivers/{driver}"), device.join("driver")).unwrap();
        if driver == format!("{}vf", self.driver) {
            let mut state = self.state.lock().unwrap();
            let number = FUNCTIONS.iter().position(|it| *it == function).unwrap();
            state.next += 1;
            let (index, mac) = (state.next, state.vfs[number].mac);
            let name = format!("eth{index}");
            fs::create_dir_all(device.join("net").join(&name)).unwrap();
            state.links.push(Link {
                index,
                name,
                mac,
                ..Link::default()
            });
            drop(state);
            self.set_bus_master(function, true);
        }
    }

    /// Removes the card's interface, or gives it this index.
    pub(crate) fn replace_card(&self, index: Option<u32>) {
        let mut state = self.state.lock().unwrap();
        state.links.retain(|it| it.name != "pf0");
        state.links.extend(index.map(|index| Link {
            index,
            name: "pf0".into(),
            ..Link::default()
        }));
    }

    /// Moves the function's interface to another namespace.
    pub(crate) fn take_interface(&self, function: &str) {
        let net = self.device(function).join("net");
        let name = fs::read_dir(&net)
            .unwrap()
            .next()
            .unwrap()
            .unwrap()
            .file_name();
        let name = name.to_str().unwrap();
        self.state
            .lock()
            .unwrap()
            .links
            .retain(|it| it.name != name);
        fs::remove_dir_all(net).unwrap();
    }

    /// Opens the group, as the kernel does: for one process only.
    fn open_group(&self, group: &Path) -> io::Result<()> {
        self.calls.begin("open group").map_err(io::Error::other)?;
        match has_holder(group) {
            true => Err(Errno::EBUSY.into()),
            false => Ok(()),
        }
    }

    fn make(&self, call: FunctionCall) -> Result<(), Failure> {
        let function = call.function.to_string();
        let name = match &call.act {
            Act::Create(_) => "create",
            Act::Bind(_) => "bind",
            Act::Unbind => "unbind",
            Act::Reset => "reset",
            Act::Open(_) => "open group",
        };
        self.calls.begin(name)?;
        match call.act {
            Act::Create(count) => self.create(count as usize),
            Act::Bind(driver) => {
                fs::write(self.device(&function).join("driver_override"), &driver).unwrap();
                self.bind(&function, &driver);
            }
            Act::Unbind => {
                let device = self.device(&function);
                fs::remove_file(device.join("driver")).ok();
                if device.join("net").exists() {
                    self.take_interface(&function);
                }
                self.set_bus_master(&function, false);
            }
            Act::Reset => self.set_bus_master(&function, false),
            Act::Open(_) => {}
        }
        Ok(())
    }
}

/// Whether any process has the file open.
fn has_holder(file: &Path) -> bool {
    let entries = |at: PathBuf| fs::read_dir(at).into_iter().flatten().flatten();
    let mut files = entries("/proc".into()).flat_map(|it| entries(it.path().join("fd")));
    files.any(|it| fs::read_link(it.path()).is_ok_and(|link| link == file))
}

fn failed(step: &'static str) -> impl Fn(String) -> StepError {
    move |why| StepError::new(step, why)
}

fn no_link(step: &'static str) -> StepError {
    StepError::new(step, "no interface has this index")
}

impl Links for Kernel {
    fn link(&self, by: By<'_>) -> Result<Option<Link>, StepError> {
        let is = |link: &&Link| match by {
            By::Index(index) => link.index == index,
            By::Name(name) => link.name == name,
        };
        Ok(self.state.lock().unwrap().links.iter().find(is).cloned())
    }

    fn index_of(&self, name: &str) -> Result<Option<u32>, StepError> {
        Ok(self.link(By::Name(name))?.map(|it| it.index))
    }

    fn set_up(&self, by: By<'_>) -> Result<(), StepError> {
        self.calls.begin("set up").map_err(failed("set up"))?;
        let link = self.link(by)?.unwrap();
        let mut state = self.state.lock().unwrap();
        let its = state.links.iter_mut().find(|it| it.index == link.index);
        its.unwrap().is_up = true;
        Ok(())
    }

    fn rename(&self, index: u32, name: &str) -> Result<(), StepError> {
        self.calls.begin("rename").map_err(failed("rename"))?;
        let mut state = self.state.lock().unwrap();
        let link = state.links.iter_mut().find(|it| it.index == index);
        let link = link.ok_or_else(|| no_link("rename"))?;
        for function in FUNCTIONS {
            let net = self.device(function).join("net");
            if net.join(&link.name).exists() {
                fs::rename(net.join(&link.name), net.join(name)).unwrap();
            }
        }
        link.name = name.to_owned();
        Ok(())
    }

    fn move_to(&self, index: u32, _namespace: BorrowedFd<'_>) -> Result<(), StepError> {
        self.calls.begin("move").map_err(failed("move"))?;
        let link = self.link(By::Index(index))?;
        let link = link.ok_or_else(|| no_link("move"))?;
        let has = |it: &&&str| self.device(it).join("net").join(&link.name).exists();
        self.take_interface(FUNCTIONS.iter().find(has).unwrap());
        Ok(())
    }

    fn functions(&self, _card: u32) -> Result<Vec<VfState>, StepError> {
        Ok(self.state.lock().unwrap().vfs.clone())
    }

    fn set_function(&self, _card: u32, number: u32, setting: VfSetting) -> Result<(), StepError> {
        let name = match setting {
            VfSetting::Mac(_) => "mac",
            VfSetting::Vlan(_) => "vlan",
            VfSetting::RateMbps(_) => "rate",
            VfSetting::SpoofCheck(_) => "spoof",
            VfSetting::Trust(_) => "trust",
        };
        self.calls.begin(name).map_err(failed("set function"))?;
        let mut state = self.state.lock().unwrap();
        if state.ignores.as_deref() == Some(name) {
            return Ok(());
        }
        let its = &mut state.vfs[number as usize];
        match setting {
            VfSetting::Mac(mac) => its.mac = Some(mac),
            VfSetting::Vlan(vlan) => its.vlan = Some(vlan.map_or(0, |it| it.get().into())),
            VfSetting::RateMbps(rate) => its.rate_mbps = Some(rate),
            VfSetting::SpoofCheck(on) => its.spoof_check = Some(on),
            VfSetting::Trust(on) => its.trust = Some(on),
        }
        Ok(())
    }
}

/// A node with one card.
pub(crate) struct World(testing::World<Machine>);

impl Deref for World {
    type Target = testing::World<Machine>;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

pub(crate) fn places(root: &Path) -> Places {
    Places {
        sysfs: root.into(),
        dev: root.join("dev"),
        records: root.join("records"),
    }
}

pub(crate) fn kernel() -> (TempDir, Arc<Kernel>) {
    kernel_of("igb")
}

fn kernel_of(driver: &'static str) -> (TempDir, Arc<Kernel>) {
    let directory = tempfile::tempdir().unwrap();
    let kernel = Arc::new(Kernel::new(directory.path(), driver));
    (directory, kernel)
}

pub(crate) fn card(
    kernel: &Arc<Kernel>,
    interface: &str,
    count: Option<u32>,
) -> Result<Card, StepError> {
    Card::open(CardConfig {
        interface: interface.into(),
        count,
        places: places(&kernel.root),
        claims: Arc::new(Claims::of(kernel.root.join("records"))),
        cdi: kernel.root.join("cdi").to_str().unwrap().to_owned(),
        hook: "/usr/sbin/fabricbiosd".into(),
        supervisor: supervisor(kernel),
        links: kernel.clone(),
    })
}

pub(crate) fn supervisor(kernel: &Arc<Kernel>) -> Supervisor {
    let [functions, groups] = [kernel, kernel].map(Arc::clone);
    // The holders are child processes of the test.
    let open = move |call: EndHolders, _: &_| call.make_by(&|it| groups.open_group(it), &|_| false);
    Supervisor::of_threads(vec![
        Handler::by(move |call: FunctionCall, _: &_| functions.make(call)),
        Handler::by(open),
    ])
}

impl World {
    /// The directory in which containers of a lease register.
    pub(crate) fn containers(&self, lease: u128) -> PathBuf {
        let name = format!("records/{}.containers", LeaseId(lease));
        self.machine.directory.path().join(name)
    }

    /// The watchdog's end for this node.
    pub(crate) fn watchdog(&self) -> VfEnd {
        VfEnd::new(
            &places(self.machine.directory.path()),
            supervisor(&self.machine.kernel),
            [],
        )
    }

    /// A node with a card of another driver.
    pub(crate) fn of(driver: &'static str) -> Self {
        let (directory, kernel) = kernel_of(driver);
        let world = testing::World::on(Machine { directory, kernel });
        world.machine.kernel.log();
        Self(world)
    }

    /// Ends the process without an order, and starts another one.
    pub(crate) fn restarted(self) -> Self {
        Self(self.0.restarted())
    }

    pub(crate) fn kernel(&self) -> &Arc<Kernel> {
        &self.machine.kernel
    }

    pub(crate) fn new() -> Self {
        Self::of("igb")
    }

    pub(crate) fn bind(&self, lease: u128, terms: NetTerms) -> NetBinding {
        net(self.0.bound(&order(lease, terms)))
    }

    pub(crate) fn cut(&self, lease: u128) -> Result<Proof, StepError> {
        self.0.cut(&order(lease, NetTerms::default()))
    }

    pub(crate) fn release(&self, lease: u128) -> Result<Proof, StepError> {
        self.0.release(&order(lease, NetTerms::default()))
    }

    pub(crate) fn is_neutral(&self, number: usize) -> bool {
        is_neutral(&self.machine.kernel, number)
    }
}

/// Whether a function is as it was before any lease.
pub(crate) fn is_neutral(kernel: &Kernel, number: usize) -> bool {
    let neutral = VfState {
        number: u32::try_from(number).unwrap(),
        mac: Some(MacAddress([0; 6])),
        vlan: Some(0),
        rate_mbps: Some(0),
        spoof_check: Some(true),
        trust: Some(false),
    };
    let function = FUNCTIONS[number];
    let forced = fs::read_to_string(kernel.device(function).join("driver_override"));
    kernel.vf(neutral.number) == neutral
        && kernel.driver(function).is_none()
        && !kernel.is_bus_master(function)
        && matches!(forced.unwrap().trim(), "" | "(null)")
}

pub(crate) fn net(binding: Binding) -> NetBinding {
    match binding.kind {
        fabricbios_wire::KindBinding::Net(Some(net)) => *net,
        other => panic!("{other:?}"),
    }
}

pub(crate) fn binding_id(lease: u128) -> BindingId {
    testing::binding_id(LeaseId(lease), 1, RESOURCE)
}

pub(crate) fn placement() -> Placement {
    let part = |name: &str, amount| Quantity {
        name: name.to_owned(),
        amount,
    };
    Placement::Vector([part("rate", 100_000_000), part("virtual functions", 1)].into())
}

pub(crate) fn order(lease: u128, terms: NetTerms) -> BindOrder {
    BindOrder {
        terms: terms.into(),
        tenant: "blue".into(),
        ..BindOrder::new(binding_id(lease), placement(), Transport::Auto)
    }
}

pub(crate) fn function(text: &str) -> PciFunction {
    PciFunction::parse(text).unwrap()
}
