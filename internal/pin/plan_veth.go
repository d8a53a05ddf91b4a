package pin

// veth places a veth device's work: only if its packets are steered, since otherwise the
// sending CPU processes them.
func (p *planner) veth(d Device) {
	switch p.plan.Steer {
	case Direct:
		p.note("veths stay as they are: their packets are handled to the end by the CPU that sends them")
	case RPS:
		for _, q := range d.RX {
			if q.CPUs == nil {
				continue
			}
			cpus, _ := p.placeVeth(d)
			p.add(d.queue(kindRPS, q, cpus, "another CPU than the sender's takes packets over, with an interrupt between CPUs each time"))
		}
	case Threaded:
		p.threadedVeth(d)
	}
}

// placeVeth gives a veth's next queue its CPUs.
func (p *planner) placeVeth(d Device) (CPUs, string) {
	if p.plan.Policy == None {
		return p.local[d.key()], "all CPUs"
	}
	return p.place(d)
}

// threadedVeth lets threads poll a veth. A veth is polled only with GRO, without
// which the kernel refuses "threaded", and only for packets of a peer without
// TSO: with it "threaded" has no effect, and nothing says so.
func (p *planner) threadedVeth(d Device) {
	switch {
	case d.Threaded == nil:
		p.note("%s: this kernel has no threads that poll devices (Linux 5.12 and newer have)", d.title())
		return
	case d.Veth.Peer == "":
		p.note("%s: its other end was not found, so its TSO cannot be disabled: 'threaded' would have no effect", d.title())
		return
	}
	p.gro(d, "a veth is polled only with GRO; without it the kernel refuses 'threaded'")
	if d.Veth.PeerTSO {
		p.add(Setting{
			Kind: kindTSO, Netns: d.Veth.PeerNetns, Device: d.Veth.Peer, Owner: d.Veth.PeerOwner, Now: "on", Want: "off",
			Why: "packets of a peer with TSO are not polled, so 'threaded' would have no effect; TCP in bulk costs more without it",
		})
	}
	placed := make([]CPUs, 0, len(d.RX))
	for range d.RX {
		cpus, _ := p.placeVeth(d)
		placed = append(placed, cpus)
	}
	p.threads(d, placed, "by the policy")
}
