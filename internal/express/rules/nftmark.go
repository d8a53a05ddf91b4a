package rules

// Expressions of nftables about marks of packets and connections.

const packetMarkName, connMarkName = "meta mark", "ct mark"

// setMark compiles the setting of a mark to what a register holds.
func (k *compiler) setMark(e nftExpr, sreg uint16, use markUse, name string) {
	const length = 4
	at, holds, ok := k.register(e.number(sreg), length)
	if !ok {
		k.strange(e)
		return
	}
	depends := holds.text != constant
	k.step(step{text: name + " set", why: holds.what(), marks: use, check: func(m *machine) truth {
		octets := m.registers[at : at+length]
		if now := loadMark(octets); use == setsConnMark {
			m.setConnMark(now, depends)
		} else {
			m.setPacketMark(now)
		}
		if doubt(octets) == varies {
			return varies
		}
		return yes
	}})
}

// asks adds a step for a condition on what registers hold, if a mark is among it.
func (k *compiler) asks(at, length int) {
	for i := at / 4; i < min((at+length+3)/4, len(k.loaded)); i++ {
		if name := k.loaded[i].what(); name == connMarkName || name == packetMarkName {
			k.step(step{pure: true, check: func(m *machine) truth {
				if m.marks != nil {
					m.marks.asked = true
				}
				return yes
			}})
		}
	}
}

func (m *machine) loadPacketMark(to []octet) {
	clear(to)
	if m.marks != nil {
		m.marks.packet.store(to)
	}
}

func (m *machine) loadConnMark(to []octet, _ ctEnd) {
	m.connMark().store(to)
}
