package datapath_test

import (
	"bytes"
	"testing"
	"time"

	"github.com/scon-project/scon/internal/express/datapath"
)

// changes are all the fields of a decision.
var changes = map[string]func(*direction){
	"next hop":    func(w *direction) { w.leave.dstMAC[5] ^= 1 },
	"own MAC":     func(w *direction) { w.leave.srcMAC[5] ^= 1 },
	"mark":        func(w *direction) { w.mark ^= 0x100 },
	"priority":    func(w *direction) { w.priority ^= 1 },
	"DSCP":        func(w *direction) { w.leave.tos = 0xb8 },
	"DSCP washed": func(w *direction) { w.enter.tos = 0x28 },
}

// A new decision of the regular path is recorded, but not used in the same
// jiffy: another CPU may still be reading the old decision.
func TestChangedDecision(t *testing.T) {
	for name, change := range changes {
		t.Run(name, func(t *testing.T) {
			b := newBed(t)
			for _, f := range families(masqueraded(tcp), masqueraded6(tcp)) {
				b.express(f)
				for _, w := range []direction{f.out, f.in} {
					if name == "next hop" && w.end == datapath.ToContainer {
						continue // the container's device has one address
					}
					change(&w)
					b.Settings().Generation++
					b.decide(w)
					b.goesExpress(w)
				}
			}
		})
	}
}

// A packet that follows in the jiffy of a new decision goes regular.
func TestDecisionWaitsForNextJiffy(t *testing.T) {
	f := masqueraded(udp)
	b := newBed(t)
	b.express(f)
	for range 1000 {
		b.nextTick()
		f.out.leave.dstMAC[0] ^= 2
		b.Settings().Generation++
		b.enters(f.out)
		now := b.jiffies()
		b.leaves(f.out)
		r := b.runSilent(f.out.start, f.out.enter.bytes(), skb{Mark: f.out.inMark})
		if b.jiffies() != now {
			continue // too slow to decide
		}
		if r.verdict != unspec || r.reason != "lease_ended" {
			t.Fatalf("verdict %d, reason %q in the jiffy of the decision", r.verdict, r.reason)
		}
		b.nextTick()
		b.goesExpress(f.out)
		return
	}
	t.Fatal("this machine never runs four programs in one jiffy")
}

// A lease is renewed by one packet that comes out as decided before, and holds
// for the very next one.
func TestRenewal(t *testing.T) {
	for name, end := range map[string]func(*bed, *datapath.Half){
		"by time":       func(b *bed, h *datapath.Half) { h.LeaseFrom -= uint32(10 * time.Minute / b.Tick()) },
		"by packets":    func(_ *bed, h *datapath.Half) { h.LeaseEnd = uint32(h.Packets) },
		"by generation": func(b *bed, _ *datapath.Half) { b.Settings().Generation++ },
	} {
		t.Run(name, func(t *testing.T) {
			f := published(tcp)
			b := newBed(t)
			b.express(f)
			end(b, b.half(f.out.enter, b.port))
			if enter, leave := b.regular(f.out); enter == "" || leave != "" {
				t.Fatalf("reasons %q, %q; want one at the start", enter, leave)
			}
			b.goesExpress(f.out)

			end(b, b.half(f.in.enter, 0))
			if enter, leave := b.regular(f.in); enter == "" || leave != "lease_ended" {
				t.Fatalf("reasons %q, %q; want one at both ends", enter, leave)
			}
			b.goesExpress(f.in)
		})
	}
}

// Nothing goes express before a Conentry has a lease, also if its decisions are known.
func TestNoLease(t *testing.T) {
	for family, f := range families(masqueraded(tcp), masqueraded6(tcp)) {
		t.Run(family, func(t *testing.T) {
			b := newBed(t)
			e := b.place(f)
			b.decide(f.out)
			b.decide(f.in)
			b.goesRegular(f.out, "lease_ended")
			b.goesRegular(f.in, "lease_ended")
			b.leaves(f.in)
			b.table.SetLease(e, lease)
			b.decide(f.out)
			b.decide(f.in)
			b.goesExpress(f.out)
			b.goesExpress(f.in)
		})
	}
}

// A longer packet than any before goes regular once; when it has passed, so may
// others.
func TestLongerPackets(t *testing.T) {
	for family, f := range families(masqueraded(udp), masqueraded6(udp)) {
		t.Run(family, func(t *testing.T) { longerPackets(t, f) })
	}
}

func longerPackets(t *testing.T, f flow) {
	b := newBed(t)
	b.express(f)
	for _, w := range []direction{f.out, f.in} {
		long := w.both(func(f *frame) { f.payload = bytes.Repeat([]byte("x"), 1000) })
		b.goesRegular(long, "too_long")
		b.goesRegular(w, "lease_ended") // it may be behind the longer one
		b.leaves(w)
		b.goesExpress(w) // still as before
		b.regular(long)
		b.goesExpress(long)
		b.goesExpress(w)
	}
}

// The first reply of a UDP connection makes it ESTABLISHED: what is known of the other
// direction ends with it, also what is on its way, and whether or not the reply arrives.
func TestFirstReply(t *testing.T) {
	const confirmed = 1 << 3
	for name, f := range map[string]flow{
		"masqueraded": masqueraded(udp), "published": published(udp), "published, IPv6": published6(udp),
	} {
		t.Run(name, func(t *testing.T) {
			there, back := f.out, f.in
			if f.tuple != f.conn.Orig {
				there, back = back, there
			}
			f.conn.Status = confirmed
			b := newBed(t)
			b.compose(f)
			b.decide(there)
			b.goesExpress(there)

			b.enters(back) // and is dropped
			b.goesRegular(there, "new_generation")
			b.leaves(there)
			b.nextTick()
			b.goesExpress(there)

			expires := back
			expires.enter.ttl = 1 // IP drops it when conntrack has seen it
			b.enters(expires)
			b.goesRegular(there, "new_generation")
			b.enters(back)
			b.leaves(there)
			b.nextTick()
			b.goesRegular(there, "new_generation")
			b.leaves(there)
			b.nextTick()
			b.goesExpress(there)

			b.decide(back)
			b.goesRegular(there, "new_generation")
			b.leaves(there)
			b.nextTick()
			b.goesExpress(there)
			b.goesExpress(back)
			b.Settings().Generation++
			b.decide(there)
			b.decide(back)
			b.goesExpress(there) // further replies change nothing
			if events := b.events(); len(events) > 0 {
				t.Errorf("events %+v", events)
			}
		})
	}
}

// Segments count by their own length, not by that of the packet they are in.
func TestSegments(t *testing.T) {
	for _, f := range []flow{masqueraded(tcp), masqueraded(udp), masqueraded6(tcp), masqueraded6(udp)} {
		proto := f.tuple.Proto
		b := newBed(t)
		b.express(f)
		for _, w := range []direction{f.out, f.in} {
			segment := uint32(len(w.enter.payload))
			w = w.both(func(f *frame) { f.payload = bytes.Repeat(f.payload, 100) })
			r := b.run(w.start, w.enter.bytes(), skb{Mark: w.inMark, GSOSize: segment, GSOSegs: 100})
			if r.verdict != redirect || !bytes.Equal(r.data, w.leave.bytes()) || r.skb.GSOSize != segment {
				t.Errorf("%s, protocol %d: verdict %d, reason %q, segments of %d", w.start, proto, r.verdict, r.reason, r.skb.GSOSize)
			}
		}
	}
}

// Only the packet that entered can show what the regular path made of it.
func TestUntied(t *testing.T) {
	for name, mangle := range map[string]func(*frame){
		"TTL":             func(f *frame) { f.ttl-- },
		"identification":  func(f *frame) { f.id++ },
		"length":          func(f *frame) { f.payload = f.payload[1:] },
		"sequence number": func(f *frame) { f.seq++ },
	} {
		t.Run(name, func(t *testing.T) {
			f := masqueraded(tcp)
			b := newBed(t)
			b.compose(f)
			for _, w := range []direction{f.out, f.in} {
				mangled := w
				mangle(&mangled.leave)
				if enter, leave := b.regular(mangled); enter != "composing" || leave != "untied" {
					t.Errorf("%s: reasons %q, %q", w.start, enter, leave)
				}
				b.nextTick()
				b.goesRegular(w, "composing")
			}
		})
	}
}

// A packet with a wrong checksum is INVALID to conntrack, and matches other rules than
// those of its connection that it knows: what becomes of it decides nothing.
func TestDamagedDecidesNothing(t *testing.T) {
	for _, f := range []flow{masqueraded(tcp), masqueraded(udp), masqueraded6(tcp), masqueraded6(udp)} {
		b := newBed(t)
		b.compose(f)
		for _, w := range []direction{f.out, f.in} {
			for _, size := range []int{1, 2, 3, 470, 500, 512, 1001, 1400} {
				w = w.both(func(f *frame) { f.payload = bytes.Repeat([]byte("y"), size) })
				damaged := w.both(func(f *frame) { f.damaged = true })
				b.Settings().Generation++
				if _, leave := b.regular(damaged); leave != "malformed" {
					t.Errorf("%s, protocol %d, %d bytes: reason %q for a wrong checksum", w.end, w.enter.proto, size, leave)
				}
				b.nextTick()
				if reason := b.enters(w); reason == "" {
					t.Errorf("%s, protocol %d, %d bytes: express after a packet with a wrong checksum", w.start, w.enter.proto, size)
				}
				b.leaves(w)
				b.nextTick()
				b.goesExpress(w)
			}
		}
	}
}

// A packet that never left, or never entered, decides nothing.
func TestHalfAWay(t *testing.T) {
	f := masqueraded(tcp)
	b := newBed(t)
	b.compose(f)
	for _, w := range []direction{f.out, f.in} {
		// While no packet is known to be in flight, to_wire reads none.
		if reason := b.leaves(w); reason != "untied" && reason != "" {
			t.Errorf("%s: reason %q for a packet that never entered", w.end, reason)
		}
		b.goesRegular(w, "composing")
		b.nextTick()
		b.goesRegular(w, "composing")
	}
	b.leaves(f.out)
	if reason := b.leaves(f.out); reason != "untied" {
		t.Errorf("to_wire: reason %q for a packet that left twice", reason)
	}
}

// An equal packet is not the one that entered, which may have been dropped.
func TestEqualDecidesNothing(t *testing.T) {
	for _, f := range []flow{masqueraded(udp), masqueraded6(udp)} {
		b := newBed(t)
		b.compose(f)
		for _, w := range []direction{f.out, f.in} {
			b.enters(w)
			if r := b.run(w.end, w.leave.bytes(), skb{Mark: w.mark, Priority: w.priority}); r.verdict != unspec || r.reason != "untied" {
				t.Errorf("%s: verdict %d, reason %q", w.end, r.verdict, r.reason)
			}
			b.nextTick()
			b.goesRegular(w, "composing")
		}
	}
}

// Rules that change while a packet is in flight make what was seen of it worth
// nothing.
func TestGenerationChangesUnderway(t *testing.T) {
	f := masqueraded(tcp)
	b := newBed(t)
	b.express(f)
	for _, w := range []direction{f.out, f.in} {
		b.Settings().Generation++
		b.enters(w)
		b.Settings().Generation++
		b.leaves(w)
		b.nextTick()
		b.goesRegular(w, "new_generation")
		b.leaves(w)
		b.goesExpress(w)
	}
}

// Without a heartbeat the programs record nothing.
func TestInertAtTheEnd(t *testing.T) {
	f := masqueraded(tcp)
	b := newBed(t)
	b.compose(f)
	b.enters(f.in)
	b.carry()
	if r := b.runAfter(func() { b.liven(); b.stop() }, f.in.end, f.in.leave.bytes(), skb{}); r.reason != "inert" || r.verdict != unspec {
		t.Errorf("to_container: verdict %d, reason %q", r.verdict, r.reason)
	}
	b.nextTick()
	b.goesRegular(f.in, "composing")
}

// A packet of another identity is not what was decided on: it changes nothing
// while the decision is good, and becomes the identity when it is not.
func TestOtherIdentity(t *testing.T) {
	for name, change := range map[string]func(*direction){
		"MAC":  func(w *direction) { w.enter.srcMAC[5] ^= 1 },
		"mark": func(w *direction) { w.inMark = 9 },
		"DSCP": func(w *direction) { w.enter.tos, w.leave.tos = 0x48, 0x48 },
	} {
		t.Run(name, func(t *testing.T) {
			f := masqueraded(tcp)
			b := newBed(t)
			b.express(f)
			for _, w := range []direction{f.out, f.in} {
				b.Settings().Generation++
				b.regular(w)
				other := w
				change(&other)
				if enter, leave := b.regular(other); enter != "identity" || leave != "untied" {
					t.Errorf("%s: reasons %q, %q", w.start, enter, leave)
				}
				b.goesExpress(w)
				b.Settings().Generation++
				b.decide(other)
				b.goesExpress(other)
				b.goesRegular(w, "identity")
			}
		})
	}
}

// What comes in by another uplink was not decided on.
func TestOtherUplink(t *testing.T) {
	f := published(tcp)
	b := newBed(t)
	other := addPair(t, b.ns, "wire2", "outside2")
	if err := b.Track(other, datapath.Delivery{}); err != nil {
		t.Fatal(err)
	}
	b.express(f)
	r := b.run(f.in.start, f.in.enter.bytes(), skb{Mark: f.in.inMark, Ifindex: uint32(other)})
	if r.verdict != unspec || r.reason != "identity" {
		t.Errorf("verdict %d, reason %q", r.verdict, r.reason)
	}
	b.goesExpress(f.in)
}

// Neither is what leaves, or reaches the container, having come by another device
// than the packets that it resembles.
func TestCameByAnotherDevice(t *testing.T) {
	for family, f := range families(published(udp), published6(udp)) {
		t.Run(family, func(t *testing.T) {
			b := newBed(t)
			b.compose(f)
			for _, w := range []direction{f.out, f.in} {
				b.enters(w)
				r := b.run(w.end, w.leave.bytes(), skb{Mark: w.mark, Priority: w.priority, IngressIfindex: 1})
				if r.verdict != unspec || r.reason != "untied" {
					t.Errorf("%s: verdict %d, reason %q", w.end, r.verdict, r.reason)
				}
				b.nextTick()
				b.goesRegular(w, "composing")
				b.decide(w)
				b.goesExpress(w)
			}
		})
	}
}

// What the bridge sends to all of its ports, as it knows none for the MAC address,
// reaches a container whose it is not: nothing is decided by that.
func TestForAnotherDevice(t *testing.T) {
	f := published(udp)
	b := newBed(t)
	b.compose(f)
	b.decide(f.out)
	other := f.in
	other.leave.dstMAC[5]++
	if enter, leave := b.regular(other); enter != "composing" || leave != "untied" {
		t.Errorf("reasons %q and %q", enter, leave)
	}
	b.nextTick()
	b.goesRegular(other, "composing")
	b.decide(f.in)
	b.goesExpress(f.in)
}

// Nor does what it sends to all of its ports while no packet is on its way make a connection
// a candidate, or end a discard of the container's packets.
func TestFloodedToOthers(t *testing.T) {
	for name, f := range map[string]flow{"UDP": published(udp), "TCP": published(tcp), "UDP, IPv6": published6(udp), "TCP, IPv6": published6(tcp)} {
		t.Run(name, func(t *testing.T) {
			b := newBed(t)
			if err := b.table.Discard(b.port, f.out.enter.dstMAC, f.tuple, time.Now()); err != nil {
				t.Fatal(err)
			}
			h := b.dropped(f)
			b.Settings().LastProbe = 0
			before, flooded := h.State, f.in.leave
			flooded.dstMAC = neighbourMAC
			for range 2 * admit {
				if r := b.run(datapath.ToContainer, flooded.bytes(), skb{}); r.verdict != unspec || r.reason != "no_entry" {
					t.Errorf("verdict %d, reason %q", r.verdict, r.reason)
				}
			}
			if h.State != before {
				t.Errorf("state %d, then %d", before, h.State)
			}
			if e, ok, err := b.NextEvent(); ok || err != nil {
				t.Errorf("announced: %+v, %v", e, err)
			}
		})
	}
}

// SYN, FIN and RST end both directions at once, whichever side sends them, and the
// daemon gets one event.
func TestEnd(t *testing.T) {
	for name, flag := range map[string]uint8{"SYN": flagSYN, "FIN": flagFIN | flagACK, "RST": flagRST} {
		for _, dir := range []string{"out", "in"} {
			t.Run(name+"/"+dir, func(t *testing.T) {
				f := masqueraded(tcp)
				b := newBed(t)
				b.compose(f)
				e := b.table.Lookup(f.tuple)
				b.decide(f.out)
				b.decide(f.in)
				w := f.out
				if dir == "in" {
					w = f.in
				}
				ending := w.both(func(f *frame) { f.flags = flag })
				for range 2 {
					b.goesRegular(ending, "tcp_syn_fin_rst")
				}
				b.leaves(ending)
				b.nextTick()
				b.goesRegular(f.out, "closed")
				b.goesRegular(f.in, "closed")
				events := b.events()
				if len(events) != 1 || !events[0].Closed || b.table.At(events[0].Slot) != e {
					t.Errorf("events %+v, want one that closes the connection", events)
				}
			})
		}
	}
}

// The daemon hears whether the receiver of a RST will believe it: at the number
// that it has acknowledged last, or behind the last byte that was sent to it.
func TestReset(t *testing.T) {
	f := masqueraded(tcp)
	sent := f.out.enter
	end := sent.seq + uint32(len(sent.payload))
	for name, tc := range map[string]struct {
		seq   uint32
		stray bool
	}{
		"behind the last byte":     {end, false},
		"at the acknowledgement":   {f.in.enter.ack, false},
		"in front of the last one": {end - 1, true},
		"beyond half":              {end + 1<<30, true},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBed(t)
			b.express(f)
			b.goesExpress(f.out)
			b.goesExpress(f.in)
			b.goesRegular(f.out.both(func(f *frame) { f.flags, f.seq, f.payload = flagRST, tc.seq, nil }), "tcp_syn_fin_rst")
			events := b.events()
			if len(events) != 1 || !events[0].Closed || !events[0].Reset || events[0].Stray != tc.stray {
				t.Errorf("events %+v, want a RST, stray %v", events, tc.stray)
			}
		})
	}
}

// Express packets record the progress of a connection, which never goes back.
func TestProgress(t *testing.T) {
	f := masqueraded(tcp)
	b := newBed(t)
	b.express(f)
	h := b.half(f.out.enter, b.port)
	base, size := f.out.enter.seq, uint32(len(f.out.enter.payload))
	for _, step := range []struct{ seq, ack, wantEnd, wantAck uint32 }{
		{base + 100, 1000, base + 100 + size, max(1000, f.out.enter.ack)},
		{base + 50, f.out.enter.ack + 7, base + 100 + size, f.out.enter.ack + 7},
	} {
		b.goesExpress(f.out.both(func(f *frame) { f.seq, f.ack = step.seq, step.ack }))
		if h.SeqEnd != step.wantEnd || h.Ack != step.wantAck {
			t.Errorf("seq %d, ack %d: end %d, acknowledged %d; want %d, %d",
				step.seq, step.ack, h.SeqEnd, h.Ack, step.wantEnd, step.wantAck)
		}
	}
}

// A TCP connection whose sequence numbers have advanced is reported when its
// lease is renewed, whether its packets were express or regular: each time after
// twice as many bytes, up to a bound.
func TestReportsTCPProgress(t *testing.T) {
	const first, bound = 1 << 16, 1 << 28
	f := masqueraded(tcp)
	for name, move := range map[string]func(*bed, direction){
		"express": func(b *bed, w direction) {
			b.goesExpress(w)
			if events := b.events(); len(events) > 0 {
				b.t.Fatalf("events %+v before the lease ended", events)
			}
		},
		"regular": func(b *bed, w direction) { b.Settings().Generation++; b.regular(w) },
	} {
		for _, w := range []direction{f.out, f.in} {
			t.Run(name+"/"+w.start.String(), func(t *testing.T) {
				b := newBed(t)
				e := b.compose(f)
				b.decide(f.out)
				b.decide(f.in)
				for offset := uint32(first); offset <= 4*bound; offset *= 2 {
					step := min(offset, bound)
					for _, sent := range []struct {
						bytes    uint32
						reported bool
					}{{step - 1, false}, {1, true}, {0, false}} {
						w = w.both(func(f *frame) { f.seq += sent.bytes })
						move(b, w)
						b.Settings().Generation++
						b.decide(w)
						events := b.events()
						if reported := len(events) == 1; reported != sent.reported || len(events) > 1 {
							t.Fatalf("%d of %d bytes: events %+v, want one: %v", sent.bytes, step, events, sent.reported)
						}
						if sent.reported && (!events[0].Progress || events[0].Closed || b.table.At(events[0].Slot) != e) {
							t.Fatalf("%d bytes: event %+v, want one of progress", step, events[0])
						}
					}
				}
			})
		}
	}
}

// A lease of TCP ends before its packets, of 64 KiB at most, can go half as far
// as sequence numbers can be compared.
func TestLongLease(t *testing.T) {
	const most = 1 << 24
	for proto, want := range map[uint8]uint32{tcp: datapath.TCPLeasePackets, udp: most} {
		f := masqueraded(proto)
		b := newBedWith(t, func(o *datapath.Options) { o.LeasePackets = most })
		b.express(f)
		for _, h := range []*datapath.Half{b.half(f.out.enter, b.port), b.half(f.in.enter, 0)} {
			if h.LeaseEnd != want {
				t.Errorf("protocol %d: a lease of %d packets, want %d", proto, h.LeaseEnd, want)
			}
		}
	}
}
