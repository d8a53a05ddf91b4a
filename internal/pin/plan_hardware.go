package pin

import (
	"fmt"
	"regexp"
	"slices"
	"sort"
	"strconv"
)

// key identifies a device: names repeat across namespaces.
func (d Device) key() string { return d.Netns + "|" + d.title() }

// queueNumber ends the names of interrupts that are a queue's: eth0-TxRx-3,
// virtio0-input.0, mlx5_comp3@pci:0000:41:00.0.
var queueNumber = regexp.MustCompile(`(?:[-.]|comp)(\d+)(?:@.*)?$`)

// group is the vectors of one queue: its packets in both directions.
type group struct {
	number  int
	vectors []Vector
}

// groups sorts a device's interrupts into those of queues and the others, such
// as of its link and its settings. Where none is named after a queue, all are.
func (d Device) groups() (queues []group, others []Vector) {
	byNumber := make(map[int][]Vector)
	for _, v := range d.Vectors {
		m := queueNumber.FindStringSubmatch(v.Name)
		if m == nil {
			others = append(others, v)
			continue
		}
		n, _ := strconv.Atoi(m[1])
		byNumber[n] = append(byNumber[n], v)
	}
	for n, vectors := range byNumber {
		queues = append(queues, group{n, vectors})
	}
	if len(queues) == 0 {
		for i, v := range others {
			queues = append(queues, group{i, []Vector{v}})
		}
		others = nil
	}
	sort.SliceStable(queues, func(i, j int) bool { return queues[i].number < queues[j].number })
	return queues, others
}

// hardware places a device's interrupts, and the settings that depend on them.
func (p *planner) hardware(d Device) {
	queues, others := d.groups()
	if len(d.Vectors) == 0 {
		p.note("%s has no interrupt of its own: nothing to place", d.title())
	}
	placed := make([]CPUs, 0, len(queues))
	for _, q := range queues {
		cpus, why := p.place(d)
		placed = append(placed, cpus)
		if cpus == nil {
			continue
		}
		for _, v := range q.vectors {
			p.irq(d, v, cpus, why)
		}
	}
	if p.plan.Policy != None {
		for _, v := range others {
			p.irq(d, v, CPUs{p.rest}, "no queue's: kept off the CPUs that handle packets")
		}
	}
	p.xps(d, placed)
	switch p.plan.Steer {
	case RPS:
		p.rps(d, placed)
	case Threaded:
		p.threaded(d, placed)
	}
}

// place gives a device's next queue its CPUs: nil where it stays.
func (p *planner) place(d Device) (cpus CPUs, why string) {
	local := p.local[d.key()]
	switch p.plan.Policy {
	case Spread:
		// The near ones first, then the others: each gets one before any gets two.
		remote := p.all.without(local)
		order := append(p.byCore(local), p.byCore(remote)...)
		cpus, why = CPUs{p.least(order)}, "each queue on the next CPU, the near ones first; "+p.where(d)
	case NUMA:
		cpus, why = local, "all CPUs near the device; the kernel picks one of them; "+p.where(d)
	case Single:
		cpus, why = CPUs{p.byCore(local)[0]}, "everything on one CPU, the others have peace; "+p.where(d)
	case Core:
		cpus, why = CPUs{p.least(p.byCore(local))}, "a core for each queue; "+p.where(d)
	default:
		return nil, ""
	}
	if len(cpus) == 1 {
		p.given[cpus[0]]++
	}
	p.used = newCPUs(append(p.used, cpus...)...)
	return cpus, why
}

// least is the first of the CPUs that have got the fewest queues.
func (p *planner) least(order []int) int {
	best := order[0]
	for _, id := range order {
		if p.given[id] < p.given[best] {
			best = id
		}
	}
	return best
}

func (p *planner) irq(d Device, v Vector, cpus CPUs, why string) {
	p.add(Setting{
		Kind: kindIRQ, Netns: d.Netns, Device: d.title(), Item: strconv.Itoa(v.IRQ), Owner: v.Name,
		Now: v.Affinity.String(), Want: cpus.String(), Why: why,
	})
}

// xps assigns to each CPU the transmit queue whose interrupt it handles; other CPUs get
// the queues one after the other.
func (p *planner) xps(d Device, placed []CPUs) {
	if len(d.TX) < 2 || len(placed) < len(d.TX) || p.plan.Policy != Spread && p.plan.Policy != Core {
		return
	}
	senders := make([]CPUs, len(d.TX))
	next := 0
	for _, c := range p.CPUs {
		at := slices.IndexFunc(placed, func(cpus CPUs) bool { return cpus.has(c.ID) })
		if at < 0 || at >= len(d.TX) { // a CPU without a queue of its own
			at = next % len(d.TX)
			next++
		}
		senders[at] = append(senders[at], c.ID)
	}
	for i, q := range d.TX {
		if q.CPUs == nil {
			continue
		}
		p.add(d.queue(kindXPS, q, newCPUs(senders[i]...), "sent packets are completed on the CPU that sent them"))
	}
}

// rps hands packets from the CPUs with interrupts to the others near the device.
func (p *planner) rps(d Device, placed []CPUs) {
	for i, q := range d.RX {
		if q.CPUs == nil {
			continue
		}
		set := p.local[d.key()]
		if i < len(placed) && len(placed[i]) == 1 && len(set) > 1 {
			set = set.without(placed[i])
		}
		p.used = newCPUs(append(p.used, set...)...)
		p.add(d.queue(kindRPS, q, set, fmt.Sprintf("receive queues: %d, CPUs near: %d; the others take packets over, with an interrupt between CPUs each time",
			len(d.RX), len(p.local[d.key()]))))
	}
}

// threaded lets threads poll the device, each where its queue's interrupt is.
func (p *planner) threaded(d Device, placed []CPUs) {
	if d.Threaded == nil {
		p.note("%s: this kernel has no threads that poll devices (Linux 5.12 and newer have)", d.title())
		return
	}
	p.threads(d, placed, "where the queue's interrupt comes to")
}

// threads enables a device's threads and places them in the order of their
// queues.
func (p *planner) threads(d Device, placed []CPUs, why string) {
	p.add(Setting{
		Kind: kindThreaded, Netns: d.Netns, Device: d.Name, Owner: d.Owner, Now: zeroOne(*d.Threaded), Want: "1",
		Why: "threads can be placed and have a priority, softirqs have neither",
	})
	p.add(Setting{
		Kind: kindThreads, Netns: d.Netns, Device: d.Name, Owner: d.Owner,
		Want: threadsOf(placed), Why: fmt.Sprintf("%s; without a real-time priority they wait for other processes", why),
	})
}

// queue is a setting of a queue's CPUs.
func (d Device) queue(k Kind, q Queue, want CPUs, why string) Setting {
	return Setting{
		Kind: k, Netns: d.Netns, Device: d.Name, Item: q.Name, Owner: d.Owner,
		Now: q.CPUs.String(), Want: want.String(), Why: why,
	}
}
