package pin

import (
	"errors"
	"fmt"
	"slices"
	"sort"
	"strings"
)

// Options of a plan.
type Options struct {
	Policy Policy `json:"policy"`
	Steer  Steer  `json:"steer"`
	// Power keeps the CPUs that work is placed on awake and at full frequency.
	Power bool `json:"power"`
	// MergeUDP has GRO merge datagrams of a flow that arrive together, which is for
	// packets that are forwarded.
	MergeUDP bool `json:"merge_udp"`
	// Devices are names or addresses; empty: all.
	Devices []string `json:"devices,omitempty"`
}

// Plan is the settings to change, in order.
type Plan struct {
	Options
	Settings []Setting `json:"settings"`
	// Notes say what stays unchanged, and remarks on the rest.
	Notes []string `json:"notes"`
}

// ErrNoDevice is wrapped when no device has a name.
var ErrNoDevice = errors.New("no such device")

// fifo is the priority of polling threads: the middle, as for the kernel's interrupt
// threads.
const fifo = 50

// New makes the plan for a machine. The same snapshot gives the same plan.
func New(s Snapshot, o Options) (Plan, error) {
	p := &planner{Snapshot: s, plan: Plan{Options: o, Settings: []Setting{}, Notes: []string{}}}
	devices, err := s.choose(o.Devices)
	if err != nil {
		return Plan{}, err
	}
	p.usable()
	for _, d := range devices {
		p.near(d)
	}
	p.irqbalance(devices)
	// Those that must be near something choose first.
	devices = slices.Clone(devices)
	sort.SliceStable(devices, func(i, j int) bool { return nodeless(devices[i]) < nodeless(devices[j]) })
	for _, d := range devices {
		if d.Veth != nil {
			p.veth(d)
		} else {
			p.hardware(d)
		}
		p.mergeUDP(d)
	}
	p.power()
	p.overcommitted()
	if len(p.plan.Settings) == 0 {
		p.note("nothing is changed")
	}
	settings := p.plan.Settings
	sort.SliceStable(settings, func(i, j int) bool {
		return slices.Index(kinds, settings[i].Kind) < slices.Index(kinds, settings[j].Kind)
	})
	return p.plan, nil
}

// choose finds devices by name or address, all without one.
func (s Snapshot) choose(names []string) ([]Device, error) {
	if len(names) == 0 {
		return s.Devices, nil
	}
	var chosen []Device
	for _, name := range names {
		before := len(chosen)
		for _, d := range s.Devices {
			if d.Name == name || d.Address != "" && d.Address == name {
				chosen = append(chosen, d)
			}
		}
		if len(chosen) == before {
			var all []string
			for _, d := range s.Devices {
				all = append(all, d.title())
			}
			return nil, fmt.Errorf("find device %q: %w; there are: %s", name, ErrNoDevice, strings.Join(newNames(all), ", "))
		}
	}
	return chosen, nil
}

// newNames are names without repeats.
func newNames(names []string) []string {
	slices.Sort(names)
	return slices.Compact(names)
}

// planner builds a plan.
type planner struct {
	Snapshot
	plan Plan
	// all are the usable CPUs, rest the one for interrupts that belong to no queue.
	all  CPUs
	rest int
	// local are the CPUs near each device, by title.
	local map[string]CPUs
	// given counts the queues of each CPU.
	given map[int]int
	// used are the CPUs that got work.
	used CPUs
}

func (p *planner) note(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	if !slices.Contains(p.plan.Notes, text) {
		p.plan.Notes = append(p.plan.Notes, text)
	}
}

func (p *planner) add(s Setting) { p.plan.Settings = append(p.plan.Settings, s) }

// usable finds the CPUs for work: not isolated ones, not those without a tick, nor
// those reserved by containers.
func (p *planner) usable() {
	p.local, p.given = make(map[string]CPUs), make(map[int]int)
	p.all = p.online()
	leave := func(what string, set CPUs) {
		set = set.and(p.all)
		switch rest := p.all.without(set); {
		case len(set) == 0:
		case len(rest) == 0:
			p.note("%s are all the CPUs that are left, so work is placed on them", what)
		default:
			p.note("CPUs %v get nothing: %s", set, what)
			p.all = rest
		}
	}
	leave("isolated CPUs (isolcpus)", p.Isolated)
	leave("CPUs without a tick (nohz_full)", p.NohzFull)
	var own CPUs
	for _, c := range p.Containers {
		own = newCPUs(append(own, c.CPUs...)...)
	}
	leave("CPUs that containers have to themselves (cpuset)", own)
	p.rest = p.all[0]
}

// manyCores is the number of cores of a node above which the first core is left to all
// other interrupts, as by irqaffinity=0 in "Applicability of Hardware-Supported
// Containers in Low-Latency Networking", section III-B.
const manyCores = 4

// near finds the CPUs of a device's node.
func (p *planner) near(d Device) {
	set := p.all
	if d.Node >= 0 && len(p.nodes()) > 1 {
		set = p.all.and(p.node(d.Node))
		if len(set) == 0 {
			p.note("%s: its node %d has no CPU that may be used, so all are", d.title(), d.Node)
			set = p.all
		}
	}
	if set.has(p.rest) && p.cores(set) >= manyCores {
		set = set.without(CPUs{p.rest})
	}
	p.local[d.key()] = set
}

func nodeless(d Device) int {
	if d.Node < 0 {
		return 1
	}
	return 0
}

// where describes the CPUs near a device.
func (p *planner) where(d Device) string {
	switch {
	case len(p.nodes()) < 2:
		return "the machine has one NUMA node"
	case d.Node < 0:
		return d.title() + " is at no NUMA node"
	}
	return fmt.Sprintf("%s is at NUMA node %d", d.title(), d.Node)
}

// irqbalance excludes pinned interrupts from irqbalance.
func (p *planner) irqbalance(devices []Device) {
	if p.Irqbalance == nil || p.plan.Policy == None {
		return
	}
	args := p.Irqbalance.Args
	var banned []string
	for _, d := range devices {
		for _, v := range d.Vectors {
			if arg := fmt.Sprintf("--banirq=%d", v.IRQ); !slices.Contains(strings.Fields(args), arg) {
				banned = append(banned, arg)
			}
		}
	}
	if len(banned) == 0 {
		return
	}
	p.add(Setting{
		Kind: kindIrqbalance, Item: p.Irqbalance.File, Now: args,
		Want: strings.TrimSpace(args + " " + strings.Join(banned, " ")),
		Why:  "irqbalance runs, and would move them again within 10 s",
	})
	if !p.Irqbalance.Unit {
		p.note("irqbalance runs, but not below systemd: restart it yourself after apply and after restore")
	}
}

// mergeUDP has GRO merge a device's datagrams.
func (p *planner) mergeUDP(d Device) {
	switch {
	case !p.plan.MergeUDP || d.Name == "":
		return
	case d.MergesUDP == nil:
		p.note("%s: this kernel does not merge datagrams that are forwarded (rx-udp-gro-forwarding; Linux 5.12 and newer do)", d.title())
		return
	case d.Veth != nil && p.plan.Steer != Threaded: // which adds the same
		p.gro(d, "a veth's packets are merged only with GRO, which has it polled")
	}
	p.add(Setting{
		Kind: kindMergeUDP, Netns: d.Netns, Device: d.Name, Owner: d.Owner, Now: onOff(*d.MergesUDP), Want: "on",
		Why: "datagrams of a flow that arrive together are forwarded as one; a flow of single ones gains nothing",
	})
}

// gro switches a veth's GRO on, if it is off.
func (p *planner) gro(d Device, why string) {
	if !d.Veth.GRO {
		p.add(Setting{Kind: kindGRO, Netns: d.Netns, Device: d.Name, Owner: d.Owner, Now: "off", Want: "on", Why: why})
	}
}

// overcommitted lists the CPUs with more than one queue.
func (p *planner) overcommitted() {
	if p.plan.Policy != Core {
		return
	}
	queues, cores := 0, 0
	for _, n := range p.given {
		if n > 1 {
			queues, cores = queues+n, cores+1
		}
	}
	if cores > 0 {
		p.note("%d queues share %d CPUs: a core for each needs fewer queues (ethtool -L) or containers, "+
			"or a lower rate; else 'numa' is as good", queues, cores)
	}
}

// power keeps the CPUs that get work awake.
func (p *planner) power() {
	if !p.plan.Power {
		return
	}
	used := p.used
	if len(used) == 0 {
		used = p.all
	}
	governed, sleeps := false, false
	for _, id := range used {
		c := p.cpu(id)
		if slices.Contains(c.Governors, "performance") {
			governed = true
			p.add(Setting{
				Kind: kindGovernor, Item: fmt.Sprintf("cpu%d", id), Now: c.Governor, Want: "performance",
				Why: "packets that come seldom would find the CPU at a low frequency",
			})
		}
		for _, idle := range c.Idle {
			sleeps = true
			if idle.LatencyUS <= shallowUS {
				continue
			}
			p.add(Setting{
				Kind: kindIdle, Item: fmt.Sprintf("cpu%d/%s", id, idle.State), Now: zeroOne(idle.Disabled), Want: "1",
				Why: fmt.Sprintf("waking up from %s takes %d us", idle.Name, idle.LatencyUS),
			})
		}
	}
	if !governed {
		p.note("no governor can be chosen: the machine below, or the firmware, sets the frequency")
	}
	if !sleeps {
		p.note("no idle states can be chosen: the machine below decides how CPUs sleep")
	}
}

// shallowUS is the exit latency up to which idle states stay enabled.
const shallowUS = 2

func zeroOne(b bool) string {
	if b {
		return "1"
	}
	return "0"
}

// Name is a plan's options as command-line flags.
func (o Options) Name() string {
	name := fmt.Sprintf("--policy %s", o.Policy)
	if o.Steer != Direct {
		name += fmt.Sprintf(" --steer %s", o.Steer)
	}
	if o.Power {
		name += " --power"
	}
	if o.MergeUDP {
		name += " --merge-udp"
	}
	return name
}
