package report

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/host/netdev"
	"github.com/scon-project/scon/internal/host/tcfilter"
)

// outputLimit bounds what a command may print, in bytes.
const outputLimit = 8 << 20

// command runs a program, also one that is not in an ordinary user's path.
func command(args ...string) func(context.Context) ([]byte, error) {
	return func(ctx context.Context) ([]byte, error) {
		path, err := exec.LookPath(args[0])
		for _, dir := range []string{"/usr/sbin", "/sbin", "/usr/local/sbin"} {
			if err == nil {
				break
			}
			path, err = exec.LookPath(filepath.Join(dir, args[0]))
		}
		if err != nil {
			return nil, fmt.Errorf("%s is not installed", args[0])
		}
		cmd := exec.CommandContext(ctx, path, args[1:]...)
		cmd.Env = []string{"LC_ALL=C", "PATH=/usr/sbin:/usr/bin:/sbin:/bin"}
		cmd.WaitDelay = time.Second
		var out, said limited
		cmd.Stdout, cmd.Stderr = &out, &said
		err = cmd.Run()
		switch first, _, _ := bytes.Cut(said.kept, []byte{'\n'}); {
		case err != nil && len(first) > 0:
			err = fmt.Errorf("%s: %w: %s", args[0], err, first)
		case err != nil:
			err = fmt.Errorf("%s: %w", args[0], err)
		case out.cut:
			err = fmt.Errorf("the first %d MiB", outputLimit>>20)
		}
		return out.kept, err
	}
}

// commands runs programs one after another.
func commands(all ...[]string) func(context.Context) ([]byte, error) {
	return func(ctx context.Context) ([]byte, error) {
		var out bytes.Buffer
		var errs []error
		for _, args := range all {
			text, err := command(args...)(ctx)
			errs = append(errs, err)
			fmt.Fprintf(&out, "%s:\n%s\n", strings.Join(args, " "), text)
		}
		return out.Bytes(), errors.Join(errs...)
	}
}

// limited keeps the beginning of what is written to it.
type limited struct {
	kept []byte
	cut  bool
}

func (l *limited) Write(b []byte) (int, error) {
	room := outputLimit - len(l.kept)
	l.cut = l.cut || len(b) > room
	l.kept = append(l.kept, b[:min(len(b), room)]...)
	return len(b), nil
}

// versions are those of this program, of the system, and of the tools.
func (c *collector) versions(ctx context.Context) ([]byte, error) {
	var out bytes.Buffer
	this, err := indented(c.Version)
	out.Write(this)
	release, _ := os.ReadFile("/etc/os-release")
	for line := range strings.Lines(string(release)) {
		key, value, _ := strings.Cut(line, "=")
		if slices.Contains([]string{"ID", "ID_LIKE", "VERSION_ID", "VERSION_CODENAME"}, key) {
			fmt.Fprintf(&out, "%s=%s", key, value)
		}
	}
	for _, args := range [][]string{
		{"nft", "--version"}, {"iptables", "--version"}, {"ip", "-V"}, {"systemctl", "--version"},
		{"docker", "version", "--format", "client {{.Client.Version}} server {{.Server.Version}}"},
		{"podman", "--version"}, {"containerd", "--version"}, {"nerdctl", "--version"}, {"runc", "--version"}, {"crun", "--version"}, {"k3s", "--version"},
	} {
		text, failed := command(args...)(ctx)
		first, _, _ := strings.Cut(string(text), "\n")
		if failed != nil {
			first = failed.Error()
		}
		fmt.Fprintf(&out, "%s: %s\n", args[0], first)
	}
	return out.Bytes(), err
}

// devices lists the devices, and the programs and filters at them.
func devices(context.Context) ([]byte, error) {
	links, err := netdev.List()
	if err != nil {
		return nil, fmt.Errorf("list devices: %w", err)
	}
	names := make(map[int]string)
	for _, l := range links {
		names[l.Attrs().Index] = l.Attrs().Name
	}
	var out bytes.Buffer
	var errs []error
	for _, l := range links {
		a := l.Attrs()
		fmt.Fprintf(&out, "%d %s kind %s, mtu %d, %s", a.Index, a.Name, l.Type(), a.MTU, a.OperState)
		if a.MasterIndex != 0 {
			fmt.Fprintf(&out, ", master %s", names[a.MasterIndex])
		}
		if a.ParentIndex != 0 {
			fmt.Fprintf(&out, ", on %s if%d", names[a.ParentIndex], a.ParentIndex)
		}
		qdiscs, err := netlink.QdiscList(l)
		errs = append(errs, err)
		for _, q := range qdiscs {
			fmt.Fprintf(&out, ", qdisc %s", q.Type())
		}
		fmt.Fprintln(&out)
		errs = append(errs, attached(&out, a.Index))
	}
	return out.Bytes(), firstOf(errs)
}

// attached lists the programs of tcx, netkit and tc at a device.
func attached(out io.Writer, ifindex int) error {
	var errs []error
	for _, at := range []ebpf.AttachType{ebpf.AttachTCXIngress, ebpf.AttachTCXEgress, ebpf.AttachNetkitPrimary, ebpf.AttachNetkitPeer} {
		r, err := link.QueryPrograms(link.QueryOptions{Target: ifindex, Attach: at})
		if errors.Is(err, unix.EPERM) {
			return fmt.Errorf("programs at devices: %w; run as root", err)
		}
		if err != nil {
			continue // the kernel, or the device, has no such hook
		}
		for _, p := range r.Programs {
			fmt.Fprintf(out, "    %v: program %d %s\n", at, p.ID, programName(p.ID))
		}
	}
	for side, list := range map[string]func(int) ([]tcfilter.Filter, error){"ingress": tcfilter.Ingress, "egress": tcfilter.Egress} {
		filters, err := list(ifindex)
		errs = append(errs, err)
		for _, f := range filters {
			fmt.Fprintf(out, "    tc %s: %v\n", side, f)
		}
	}
	return errors.Join(errs...)
}

func programName(id ebpf.ProgramID) string {
	p, err := ebpf.NewProgramFromID(id)
	if err != nil {
		return "of another"
	}
	defer p.Close()
	info, err := p.Info()
	if err != nil {
		return "of another"
	}
	return info.Name
}

// firstOf returns the first error and how many there are.
func firstOf(errs []error) error {
	errs = slices.DeleteFunc(errs, func(err error) bool { return err == nil })
	if len(errs) == 0 {
		return nil
	}
	return fmt.Errorf("%w; %d in all", errs[0], len(errs))
}

// pins lists what is pinned below SCON's directory of the bpffs.
func pins(context.Context) ([]byte, error) {
	var out bytes.Buffer
	err := filepath.WalkDir("/sys/fs/bpf/scon", func(path string, _ fs.DirEntry, err error) error {
		if err == nil {
			fmt.Fprintln(&out, path)
		}
		return err
	})
	if errors.Is(err, fs.ErrNotExist) && out.Len() == 0 {
		return []byte("nothing is pinned\n"), nil
	}
	return out.Bytes(), err
}

// kernel says what kernel runs, and how it was started.
func kernel(context.Context) ([]byte, error) {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return nil, fmt.Errorf("read the kernel's release: %w", err)
	}
	var out bytes.Buffer
	fmt.Fprintf(&out, "release: %s\nversion: %s\nmachine: %s\nCPUs: %d\n", unix.ByteSliceToString(u.Release[:]),
		unix.ByteSliceToString(u.Version[:]), unix.ByteSliceToString(u.Machine[:]), runtime.NumCPU())
	for _, file := range []string{
		"/proc/cmdline", "/sys/kernel/security/lsm", "/sys/kernel/security/lockdown", "/proc/loadavg", "/proc/uptime",
		"/sys/devices/system/clocksource/clocksource0/current_clocksource", "/sys/devices/system/cpu/online",
	} {
		content, err := os.ReadFile(file)
		if err != nil {
			content = []byte(err.Error())
		}
		fmt.Fprintf(&out, "%s: %s\n", file, bytes.TrimSpace(content))
	}
	btf := "there is BTF"
	if _, err := os.Stat("/sys/kernel/btf/vmlinux"); err != nil {
		btf = "there is no BTF"
	}
	fmt.Fprintln(&out, btf)
	memory, _ := os.ReadFile("/proc/meminfo")
	for line := range strings.Lines(string(memory)) {
		if strings.HasPrefix(line, "MemTotal") || strings.HasPrefix(line, "MemAvailable") {
			out.WriteString(line)
		}
	}
	fmt.Fprintf(&out, "modules: %s\n", strings.Join(modules(), " "))
	return out.Bytes(), nil
}

// kernelNames are names that come with a kernel, not from the machine's owner.
func kernelNames() []string {
	var u unix.Utsname
	_ = unix.Uname(&u) // it has no cause to fail
	names := append(modules(), unix.ByteSliceToString(u.Release[:]))
	for _, file := range sysctlFiles() {
		names = append(names, filepath.Base(file))
	}
	return names
}

var networkModule = regexp.MustCompile(`^(nf|nft|xt|ip|ip6|ipt|ip6t|ebt|arp|br|sch|cls|act|tcp|udp)_|^(bridge|bonding|veth|vxlan|vlan|8021q|wireguard|tun|dummy|macvlan|ipvlan|netkit|geneve|overlay|virtio_net|openvswitch|x_tables|nfnetlink\w*)$`)

// modules are the loaded modules of the kernel's network.
func modules() (names []string) {
	list, _ := os.ReadFile("/proc/modules")
	for line := range strings.Lines(string(list)) {
		if name, _, _ := strings.Cut(line, " "); networkModule.MatchString(name) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

var kernelOption = regexp.MustCompile(`(?m)^(?:# )?CONFIG_(?:BPF|CGROUP_BPF|DEBUG_INFO_BTF|NET_(?:CLS|ACT|SCH_INGRESS|NS)|NET_XGRESS|NETKIT|NETFILTER|NF_|NFT_|IP_NF|IP6_NF|IP_SET|BRIDGE|VETH|VXLAN|VLAN|XFRM|INET|IPV6|HZ|NO_HZ|PREEMPT|SECURITY|LSM|LOCK_DOWN|MEMCG|CGROUP_NET|USERFAULTFD|PAGE_TABLE_ISOLATION|MITIGATION|RETPOLINE|HAVE_EBPF_JIT|KPROBES|FUNCTION_TRACER|UNIX|SOCK_CGROUP|STREAM_PARSER)[A-Z0-9_]*(?:=.*| is not set)$`)

// kernelConfig are the kernel's options that matter, as the distribution or the kernel gives
// them.
func kernelConfig(context.Context) ([]byte, error) {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return nil, fmt.Errorf("read the kernel's release: %w", err)
	}
	release := unix.ByteSliceToString(u.Release[:])
	for _, path := range []string{"/boot/config-" + release, "/usr/lib/modules/" + release + "/config", "/proc/config.gz"} {
		content, err := os.ReadFile(path)
		if err != nil {
			continue
		}
		if strings.HasSuffix(path, ".gz") {
			zip, err := gzip.NewReader(bytes.NewReader(content))
			if err != nil {
				return nil, fmt.Errorf("read %s: %w", path, err)
			}
			if content, err = io.ReadAll(io.LimitReader(zip, outputLimit)); err != nil {
				return nil, fmt.Errorf("read %s: %w", path, err)
			}
		}
		return bytes.Join(kernelOption.FindAll(content, -1), []byte{'\n'}), nil
	}
	return nil, errors.New("this kernel's configuration is neither in /boot nor in /proc")
}

// readSysctls are the settings that SCON's behaviour depends on, as patterns below /proc/sys.
var readSysctls = []string{
	"kernel/unprivileged_bpf_disabled", "kernel/bpf_stats_enabled", "kernel/pid_max", "kernel/yama/ptrace_scope",
	"net/core/*", "net/bridge/*", "net/netfilter/nf_conntrack_*", "net/nf_conntrack_max",
	"net/ipv4/ip_*", "net/ipv4/fib_*", "net/ipv4/tcp_congestion_control", "net/ipv4/tcp_timestamps",
	"net/ipv4/neigh/default/*", "net/ipv4/conf/*/*filter", "net/ipv4/conf/*/forwarding", "net/ipv4/conf/*/*local*",
	"net/ipv4/conf/*/send_redirects", "net/ipv6/conf/*/forwarding", "net/ipv6/conf/*/disable_ipv6", "net/ipv6/conf/*/accept_ra",
	"vm/overcommit_memory",
}

// sysctlFiles are those settings that this kernel has.
func sysctlFiles() (files []string) {
	for _, pattern := range readSysctls {
		found, _ := filepath.Glob("/proc/sys/" + pattern) // the patterns are right
		files = append(files, found...)
	}
	return files
}

func sysctls(context.Context) ([]byte, error) {
	var out bytes.Buffer
	var errs []error
	for _, file := range sysctlFiles() {
		value, err := os.ReadFile(file)
		if errors.Is(err, fs.ErrPermission) {
			errs = append(errs, err)
		}
		if err == nil {
			fmt.Fprintf(&out, "%s = %s\n", strings.TrimPrefix(file, "/proc/sys/"), bytes.TrimSpace(value))
		}
	}
	return out.Bytes(), firstOf(errs)
}
