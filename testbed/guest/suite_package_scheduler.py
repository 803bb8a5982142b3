#!/usr/bin/python3
# lab: one-vm systemd smp=4 full
# covers: packaging docs/install.md
"""The scheduler's package by the commands of docs/install.md, under a real systemd, with etcd and both identities as credentials: a
node joins, a lease is placed, restart, upgrade, removal, purge. Needs `cargo xtask package --profile dev`."""
import os
import pathlib
import re
import shutil
import subprocess

from block import run, sh
from checks import Suite, skip, until
from debs import ADDRESS, CONFIG, IN_THE_LAB, STATE, UNIT, dpkg, install, package, ready, serves, status
from fabric import Fabric
from suite_package_page import first_lease, follow

SCHEDULER = "fabricbios-scheduler"
AT = "127.0.0.1:5704"
DROP_INS = pathlib.Path(f"/etc/systemd/system/{SCHEDULER}.service.d")
CREDENTIALS = f"/run/credentials/{SCHEDULER}.service"
ADMIN = pathlib.Path("/etc/fabricbios/fabric/admin.identity")
LOG = pathlib.Path("/run/scheduler.log")
ETCD = pathlib.Path("/run/etcd-of-the-operator")
# A CA, and a certificate of it for each of the server and its client.
CERTIFICATES = """openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout ca.key -out ca.pem -subj /CN=etcd-ca -days 2
for name in server client; do
  openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout $name.key -out $name.csr -subj /CN=$name
  printf 'subjectAltName=IP:127.0.0.1\\nextendedKeyUsage=serverAuth,clientAuth\\n' > $name.ext
  openssl x509 -req -in $name.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 -extfile $name.ext -out $name.pem
done
cat client.pem client.key ca.pem > /etc/fabricbios/etcd.identity
chmod 600 /etc/fabricbios/etcd.identity"""


def begin_etcd():
    """An etcd of the operator's, which asks for certificates. Returns its process."""
    ETCD.mkdir(mode=0o700)
    done = run("sh", "-ec", CERTIFICATES, cwd=ETCD)
    if done.returncode:
        raise RuntimeError(done.stderr)
    files = ["--trusted-ca-file", "ca.pem", "--cert-file", "server.pem", "--key-file", "server.key"]
    return subprocess.Popen(["etcd", "--data-dir", "data", "--client-cert-auth", *files, "--listen-client-urls", "https://127.0.0.1:2379",
                             "--advertise-client-urls", "https://127.0.0.1:2379"], cwd=ETCD, stdout=subprocess.DEVNULL,
                            stderr=subprocess.DEVNULL)


def answers():
    """Whether the scheduler answers."""
    return Fabric(ADMIN, AT).run("ping").returncode == 0


def main_pid():
    """The process of the scheduler."""
    return int(run("systemctl", "show", "-P", "MainPID", SCHEDULER).stdout)


def joined(suite):
    """The page's commands, then etcd and its identity, and a node that joins."""
    DROP_INS.mkdir(parents=True)
    (DROP_INS / "lab.conf").write_text(IN_THE_LAB.replace("/run/node.log", str(LOG)))
    follow(suite, "A scheduler")
    suite.check("the scheduler runs", until(lambda: run("systemctl", "is-active", SCHEDULER).stdout.strip() == "active", 30, "the scheduler"))
    (DROP_INS / "etcd.conf").write_text("[Service]\nLoadCredential=etcd.identity:/etc/fabricbios/etcd.identity\n")
    pathlib.Path(f"/etc/default/{SCHEDULER}").write_text(
        f'OPTIONS="--listen [::]:5704 --etcd https://127.0.0.1:2379 --etcd-identity {CREDENTIALS}/etcd.identity"\n')
    sh(f"systemctl daemon-reload && systemctl restart {SCHEDULER}")
    until(answers, 60, "a scheduler that answers")
    shown = run("systemd-analyze", "security", "--no-pager", SCHEDULER).stdout
    print(f"   {shown.strip().splitlines()[-1]}", flush=True)
    owner = re.search(r"Uid:\s+(\d+)", pathlib.Path(f"/proc/{main_pid()}/status").read_text())[1]
    suite.check("it is not root", owner != "0", "another user", owner)
    print(f"   credentials: {run('stat', '-c', '%n %a %u', f'{CREDENTIALS}/etcd.identity').stdout.strip()}", flush=True)
    CONFIG.write_text(CONFIG.read_text() + f'scheduler = ["{AT}"]\non-stop = "keep"\nmem-file = "/dev/shm/fabricbios"\n')
    sh(f"systemctl restart {UNIT}")
    serves()
    sh(f"systemctl stop {UNIT}")
    as_node = "runuser -u fabricbios -- fabricbiosd"
    sh(f"{as_node} node-request --state-dir {STATE} > /run/node.csr")
    sh("fabricctl fabric sign /run/node.csr --role node --dir /etc/fabricbios/fabric > /run/node.pem")
    sh(f"{as_node} node-accept /run/node.pem --state-dir {STATE}")
    sh(f"systemctl start {UNIT}")
    listed(suite, "joined")


def listed(suite, what):
    """Waits until the scheduler names the node."""
    suite.check(f"{what}: the node reports", until(lambda: answers() and Fabric(ADMIN, AT).ask("node", "list")["nodes"], 60, f"{what}: a node"))


def placed(suite, what):
    """Leases through the scheduler, and writes at the node."""
    lease = Fabric(ADMIN, AT).ask("lease", "alloc", "mem", "--bytes", "1MiB", "--secs", 600)
    used(suite, what, lease, write=True)
    return lease


def used(suite, what, lease, write=False):
    """The lease has its bytes."""
    words = ("mem", "write", lease["lease_id"]) if write else ("mem", "read", lease["lease_id"], "--len", 5)
    command, environment = Fabric(ADMIN, ADDRESS).command(*words, as_json=False)
    done = subprocess.run(command, input=b"hello" if write else None, env={**os.environ, **environment}, capture_output=True, check=False)
    suite.check(f"{what}: the lease is used", done.returncode == 0 and done.stdout in (b"hello", *([done.stdout] if write else [])), "hello", done)


def life(suite):
    """Leases, restart, upgrade, what etcd remembers, removal, purge."""
    lease = placed(suite, "placed")
    sh(f"systemctl restart {SCHEDULER}")
    listed(suite, "restart")
    used(suite, "restart", lease)
    before = main_pid()
    install(package(SCHEDULER, "0.1.1"))
    suite.equal("upgraded", "0.1.1 installed", status(SCHEDULER))
    until(lambda: main_pid() not in (0, before), 60, "another scheduler")
    listed(suite, "upgrade")
    used(suite, "upgrade", lease)
    placed(suite, "placed after the upgrade")
    sh(f"systemctl stop {UNIT} && systemctl restart {SCHEDULER}")
    suite.check("a scheduler that starts anew knows from etcd who is away",
                until(lambda: answers() and Fabric(ADMIN, AT).ask("node", "list")["away"], 60, "a node that is away"))
    sh(f"systemctl start {UNIT}")
    listed(suite, "the node is back")
    shipped = [path for path in run("dpkg", "-L", SCHEDULER).stdout.split("\n") if "fabricbios-scheduler" in path]
    suite.equal("removed", 0, dpkg("-r", SCHEDULER).returncode)
    suite.equal("the scheduler has ended", False, answers())
    used(suite, "without a scheduler", lease)
    suite.equal("purged", 0, dpkg("--purge", SCHEDULER).returncode)
    suite.equal("nothing of the package is left", [], [path for path in shipped if pathlib.Path(path).exists()])
    suite.check("the identities are the operator's", pathlib.Path("/etc/fabricbios/scheduler.identity").exists() and ADMIN.exists())


def main():
    """One machine."""
    if not shutil.which("etcd"):
        skip("etcd (Debian package etcd-server)")
    ready()
    with Suite("the scheduler's package") as suite:
        suite.section(first_lease, suite)
        etcd = begin_etcd()
        suite.section(joined, suite)
        suite.section(life, suite)
        if suite.failed:
            print(LOG.read_text()[-4000:] if LOG.exists() else "the scheduler said nothing", flush=True)
        etcd.kill()


if __name__ == "__main__":
    main()
