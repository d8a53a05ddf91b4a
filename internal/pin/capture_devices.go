package pin

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"sort"
	"strconv"
	"strings"

	"github.com/scon-project/scon/internal/host/netns"
)

// devices reads the hardware and the veths of all namespaces.
func (h *Host) devices() ([]Device, error) {
	found := []Device{}
	for _, ns := range append([]Namespace{{}}, h.Namespaces...) {
		list, err := h.devicesOf(ns.Path)
		if err != nil {
			if errors.Is(err, netns.ErrNotExist) || errors.Is(err, netns.ErrNotNetns) {
				continue // gone meanwhile
			}
			return nil, err
		}
		found = append(found, list...)
	}
	if !h.OnlyNetns {
		unseen, err := h.unseen(found)
		if err != nil {
			return nil, err
		}
		found = append(found, unseen...)
	}
	sort.SliceStable(found, func(i, j int) bool {
		a, b := found[i], found[j]
		return cmp.Or(cmp.Compare(rank(a), rank(b)), cmp.Compare(a.Netns, b.Netns), cmp.Compare(a.Address, b.Address), cmp.Compare(a.Name, b.Name)) < 0
	})
	return found, nil
}

// rank has hardware first.
func rank(d Device) int {
	if d.Veth == nil {
		return 0
	}
	return 1
}

// devicesOf reads one namespace.
func (h *Host) devicesOf(ns string) ([]Device, error) {
	t, err := h.sysfs(ns)
	if err != nil {
		return nil, err
	}
	defer t.close()
	names, err := os.ReadDir(t.dir + "/class/net")
	if err != nil {
		return nil, err
	}
	veths, err := h.Kernel.Veths(ns, h.Namespaces)
	if err != nil {
		return nil, err
	}
	var list []Device
	for _, entry := range names {
		name := entry.Name()
		where, err := t.deviceDir(name)
		if err != nil {
			continue // gone meanwhile, or no device at all: bonding_masters
		}
		d := Device{Name: name, Netns: ns, Node: -1}
		if veth, ok := veths[name]; ok {
			d.Driver, d.Veth = "veth", &veth
		} else if strings.HasPrefix(where+"/", "devices/virtual/") || h.OnlyNetns {
			continue
		} else if err := h.hardware(where, &d); err != nil {
			return nil, fmt.Errorf("read device %s: %w", name, err)
		}
		if d.Owner, err = owner(t, ns, name); err != nil {
			continue // gone meanwhile
		}
		d.RX = t.queues(name, "rx-*", "rps_cpus")
		d.TX = t.queues(name, "tx-*", "xps_cpus")
		if threaded, err := readFile(t.dir + "/class/net/" + name + "/threaded"); err == nil {
			on := threaded != "0"
			d.Threaded = &on
		}
		if features, err := h.Kernel.Features(ns, name); err == nil {
			if on, has := features[featureOf[kindMergeUDP]]; has {
				d.MergesUDP = &on
			}
		}
		list = append(list, d)
	}
	return list, nil
}

// deviceDir is the target of a device's link in class/net: the parent of "net".
func (t tree) deviceDir(name string) (string, error) {
	link, err := os.Readlink(t.dir + "/class/net/" + name)
	if err != nil {
		return "", err
	}
	return path.Dir(path.Dir(path.Join("class/net", link))), nil
}

// owner distinguishes a device from a later one of its name: the ifindex and the
// namespace's inode.
func owner(t tree, ns, name string) (string, error) {
	index, err := readFile(t.dir + "/class/net/" + name + "/ifindex")
	if err != nil || t.file == nil {
		return index, err
	}
	inode, err := netns.Inode(ns)
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("%s@%d", index, inode), nil
}

func (t tree) queues(name, pattern, file string) []Queue {
	dirs, _ := filepath.Glob(t.dir + "/class/net/" + name + "/queues/" + pattern)
	list := []Queue{}
	for _, dir := range dirs {
		q := Queue{Name: filepath.Base(dir)}
		if text, err := readFile(dir + "/" + file); err == nil {
			if set, err := parseMask(text); err == nil {
				q.CPUs = &set
			}
		}
		list = append(list, q)
	}
	sort.SliceStable(list, func(i, j int) bool { return list[i].number() < list[j].number() })
	return list
}

func (q Queue) number() int {
	_, digits, _ := strings.Cut(q.Name, "-")
	n, _ := strconv.Atoi(digits)
	return n
}

// hardware finds a device's card: the nearest parent directory with interrupts. Cards
// are the same in every namespace's sysfs.
func (h *Host) hardware(where string, d *Device) error {
	t := tree{dir: h.path("/sys")}
	d.Driver = linkName(t.dir + "/" + where + "/driver")
	d.Address = path.Base(where)
	for dir := where; strings.HasPrefix(dir, "devices/"); dir = path.Dir(dir) {
		if d.Node < 0 {
			if text, err := readFile(t.dir + "/" + dir + "/numa_node"); err == nil {
				d.Node, _ = strconv.Atoi(text)
			}
		}
		irqs := t.irqs(dir)
		if len(irqs) == 0 {
			continue
		}
		d.Address = path.Base(dir)
		return h.vectors(irqs, d)
	}
	irqs, err := h.irqsNamed(d.Name)
	if err != nil {
		return err
	}
	return h.vectors(irqs, d)
}

func linkName(name string) string {
	link, err := os.Readlink(name)
	if err != nil {
		return ""
	}
	return path.Base(link)
}

// irqs are the interrupts of a PCI card: MSI, else the line.
func (t tree) irqs(dir string) []int {
	entries, _ := os.ReadDir(t.dir + "/" + dir + "/msi_irqs")
	var irqs []int
	for _, e := range entries {
		if n, err := strconv.Atoi(e.Name()); err == nil {
			irqs = append(irqs, n)
		}
	}
	if len(irqs) == 0 {
		text, _ := readFile(t.dir + "/" + dir + "/irq")
		if n, err := strconv.Atoi(text); err == nil && n > 0 {
			irqs = append(irqs, n)
		}
	}
	slices.Sort(irqs)
	return irqs
}

// irqsNamed are the interrupts whose handlers are named after a device, for devices
// of a board that are on no bus with more information.
func (h *Host) irqsNamed(name string) ([]int, error) {
	dirs, err := filepath.Glob(h.path("/sys/kernel/irq/[0-9]*"))
	if err != nil {
		return nil, err
	}
	var irqs []int
	for _, dir := range dirs {
		n, err := strconv.Atoi(filepath.Base(dir))
		if err != nil {
			continue
		}
		for action := range strings.SplitSeq(h.actions(n), ",") {
			if action == name || strings.HasPrefix(action, name+"-") || strings.HasPrefix(action, name+":") {
				irqs = append(irqs, n)
				break
			}
		}
	}
	slices.Sort(irqs)
	return irqs, nil
}

// actions are the names of an interrupt's handlers, "" without one.
func (h *Host) actions(irq int) string {
	text, _ := h.read(fmt.Sprintf("/sys/kernel/irq/%d/actions", irq))
	return text
}

// vectors reads the interrupts that have a handler.
func (h *Host) vectors(irqs []int, d *Device) error {
	for _, irq := range irqs {
		v := Vector{IRQ: irq, Name: h.actions(irq), Effective: CPUs{}}
		if v.Name == "" {
			continue
		}
		text, err := h.read(fmt.Sprintf("/proc/irq/%d/smp_affinity_list", irq))
		if err != nil {
			continue // a controller that has no such thing
		}
		if v.Affinity, err = parseList(text); err != nil {
			return err
		}
		if text, err := h.read(fmt.Sprintf("/proc/irq/%d/effective_affinity_list", irq)); err == nil {
			if v.Effective, err = parseList(text); err != nil {
				return err
			}
		}
		d.Vectors = append(d.Vectors, v)
	}
	return nil
}

// unseen are PCI network cards whose devices are in no examined namespace.
func (h *Host) unseen(seen []Device) ([]Device, error) {
	t := tree{dir: h.path("/sys")}
	dirs, err := filepath.Glob(t.dir + "/bus/pci/devices/*")
	if err != nil {
		return nil, err
	}
	var list []Device
	for _, dir := range dirs {
		address := filepath.Base(dir)
		class, err := readFile(dir + "/class")
		if err != nil || !strings.HasPrefix(class, "0x02") ||
			slices.ContainsFunc(seen, func(d Device) bool { return d.Address == address }) {
			continue
		}
		d := Device{Address: address, Driver: linkName(dir + "/driver"), Node: -1, RX: []Queue{}, TX: []Queue{}}
		if text, err := readFile(dir + "/numa_node"); err == nil {
			d.Node, _ = strconv.Atoi(text)
		}
		if err := h.vectors(t.irqs("bus/pci/devices/"+address), &d); err != nil {
			return nil, err
		}
		if len(d.Vectors) > 0 {
			list = append(list, d)
		}
	}
	return list, nil
}
