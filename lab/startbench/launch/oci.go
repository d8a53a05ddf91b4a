package launch

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"github.com/scon-project/scon/test/bed/image"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	runc "github.com/containerd/go-runc"
	"github.com/opencontainers/runtime-spec/specs-go"
	"github.com/vishvananda/netlink"

	"github.com/scon-project/scon/internal/host/netns"
	"github.com/scon-project/scon/lab/startbench"
)

// oci is the runtime runc or runsc.
type oci struct {
	order startbench.Order
	runc.Runc
	hidden *hidden // of runsc
}

func newOCI(o startbench.Order) (r *oci, err error) {
	r = &oci{order: o, Runc: runc.Runc{
		Command: o.Runtime,
		Root:    filepath.Join(o.Dir, "runtime"),
		Log:     "/dev/null",
		Setpgid: true,
	}}
	if o.Wrapper != "" {
		r.Command = o.Wrapper
	}
	if o.Runtime == startbench.RuntimeRunsc {
		r.hidden, err = hideSysctls(filepath.Join(o.Dir, "sysctl"))
	}
	return r, err
}

func (r *oci) close() error { return r.hidden.close() }

// environment adds the variables that a wrapper reads.
func (r *oci) environment(ctx context.Context) context.Context {
	return runc.WithExtraEnv(ctx, r.order.Env...)
}

func (r *oci) prepare(c *container) error {
	text, err := json.Marshal(r.spec(c))
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(c.dir, "config.json"), text, 0o644)
}

// spec returns the output of "runc spec" with another command, root file system,
// cgroup and namespace.
func (r *oci) spec(c *container) *specs.Spec {
	capabilities := []string{"CAP_AUDIT_WRITE", "CAP_KILL", "CAP_NET_BIND_SERVICE"}
	return &specs.Spec{
		Version:  "1.0.2",
		Hostname: "scon",
		Root:     &specs.Root{Path: r.order.Root, Readonly: true},
		Process: &specs.Process{
			Args: []string{"/bin/busybox", "sleep", image.Lifetime},
			Env:  []string{"PATH=/bin"},
			Cwd:  "/",
			Capabilities: &specs.LinuxCapabilities{
				Bounding: capabilities, Effective: capabilities, Permitted: capabilities,
			},
			NoNewPrivileges: true,
		},
		Mounts: []specs.Mount{
			{Destination: "/proc", Type: "proc", Source: "proc"},
			{Destination: "/dev", Type: "tmpfs", Source: "tmpfs", Options: []string{"nosuid", "strictatime", "mode=755", "size=65536k"}},
			{Destination: "/dev/pts", Type: "devpts", Source: "devpts", Options: []string{"nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "gid=5"}},
			{Destination: "/dev/shm", Type: "tmpfs", Source: "shm", Options: []string{"nosuid", "noexec", "nodev", "mode=1777", "size=65536k"}},
			{Destination: "/dev/mqueue", Type: "mqueue", Source: "mqueue", Options: []string{"nosuid", "noexec", "nodev"}},
			{Destination: "/sys", Type: "sysfs", Source: "sysfs", Options: []string{"nosuid", "noexec", "nodev", "ro"}},
		},
		Linux: &specs.Linux{
			CgroupsPath: filepath.Join(r.order.Cgroup, c.name),
			Resources:   &specs.LinuxResources{Devices: []specs.LinuxDeviceCgroup{{Allow: false, Access: "rwm"}}},
			Namespaces: []specs.LinuxNamespace{
				{Type: specs.PIDNamespace}, {Type: specs.IPCNamespace}, {Type: specs.UTSNamespace}, {Type: specs.MountNamespace},
				{Type: specs.NetworkNamespace, Path: c.netns},
			},
			MaskedPaths:   []string{"/proc/kcore", "/proc/keys", "/proc/timer_list", "/proc/scsi"},
			ReadonlyPaths: []string{"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"},
		},
	}
}

func (r *oci) create(ctx context.Context, c *container) error {
	// The runtime's output goes to a file, since the container inherits it.
	output, err := os.Create(filepath.Join(c.dir, "output"))
	if err != nil {
		return err
	}
	defer output.Close()
	err = r.hidden.do(func() error {
		return r.Create(r.environment(ctx), c.name, c.dir, &runc.CreateOpts{IO: fileIO{output}, PidFile: r.pidFile(c)})
	})
	if err != nil {
		text, _ := os.ReadFile(output.Name())
		return fmt.Errorf("%w: %s", err, strings.TrimSpace(string(text)))
	}
	return nil
}

func (r *oci) pidFile(c *container) string { return filepath.Join(c.dir, "pid") }

func (r *oci) attaches() bool { return false }

func (r *oci) attach(context.Context, *container) error { return nil }

func (r *oci) start(ctx context.Context, c *container) error {
	return r.hidden.do(func() error { return r.Start(r.environment(ctx), c.name) })
}

// remove removes a container, which need not exist.
func (r *oci) remove(ctx context.Context, c *container) error {
	return r.hidden.do(func() error {
		return r.Delete(r.environment(ctx), c.name, &runc.DeleteOpts{Force: true})
	})
}

// address returns the address of eth0 in the namespace of the container's process.
func (r *oci) address(c *container) (addr netip.Addr, err error) {
	text, err := os.ReadFile(r.pidFile(c))
	if err != nil {
		return addr, err
	}
	err = netns.Do("/proc/"+strings.TrimSpace(string(text))+"/ns/net", func() error {
		device, err := netlink.LinkByName("eth0")
		if err != nil {
			return err
		}
		addrs, err := netlink.AddrList(device, netlink.FAMILY_V4)
		if err != nil {
			return err
		}
		if len(addrs) == 0 {
			return errors.New("eth0 has no address")
		}
		addr, _ = netip.AddrFromSlice(addrs[0].IP.To4())
		return nil
	})
	return addr, err
}
