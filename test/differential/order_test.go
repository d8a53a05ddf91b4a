package differential

import "testing"

// Packets of a connection have an order, those of several connections have none. A packet
// that arrives in one world only is a difference.
func TestOrder(t *testing.T) {
	c := generate(1, variants, everything)
	talks := []*talk{newTalk(c.Conns[0], makeup{}), newTalk(c.Conns[1], makeup{})}
	var shots []shot
	packet := func(conn, item int) captured {
		m := &maker{talk: talks[conn], index: conn, dir: orig, id: uint16(item), item: item}
		shots = append(shots, *m.frame(m.form(orig, uint16(item), []byte("data")).bytes()))
		return captured{to: c2, data: string(shots[len(shots)-1].frame)}
	}
	first, second, other := packet(0, 0x10), packet(0, 0x20), packet(1, 0x30)
	for name, test := range map[string]struct {
		scon   []captured
		differ bool
	}{
		"equal":                {[]captured{first, second, other}, false},
		"of two connections":   {[]captured{other, first, second}, false},
		"of one connection":    {[]captured{second, first, other}, true},
		"missing":              {[]captured{first, second}, true},
		"twice":                {[]captured{first, second, other, other}, true},
		"of none of the items": {[]captured{first, second, other, {to: c2, data: string(make([]byte, 64))}}, true},
	} {
		t.Run(name, func(t *testing.T) {
			d := compare(chanceIn(c), talks, shots, []captured{first, second, other}, test.scon)
			if (d != nil) != test.differ {
				t.Errorf("the difference is %v", d)
			}
		})
	}
}
