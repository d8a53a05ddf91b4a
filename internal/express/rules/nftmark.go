package rules

import "golang.org/x/sys/unix"

// Marks of packets and connections that each packet may change anew, by what the last one has
// left: compiler.flips has the registers that hold such a value.

// setMark compiles the setting of a mark to what a register holds.
func (k *compiler) setMark(e nftExpr, sreg uint16, name string) {
	const length = 4
	at, _, ok := k.register(e.number(sreg), length)
	if flips := k.flips[at/4]; ok && flips != nil {
		k.step(step{text: name + " set", why: name, check: func(*machine) truth {
			if flips() {
				return varies
			}
			return yes
		}})
		return
	}
	k.use(e, sreg, length, name+" set")
}

// holdsMark reports whether a mark is among what registers hold.
func (k *compiler) holdsMark(at, length int) bool {
	for i := at / 4; i < min((at+length+3)/4, len(k.loaded)); i++ {
		if k.loaded[i].isMark() || k.flips[i] != nil {
			return true
		}
	}
	return false
}

func certainly() bool { return true }

// isMark reports whether it is the mark of a packet or of a connection.
func (s *source) isMark() bool {
	return s.what() == ctKeys[unix.NFT_CT_MARK].name || s.what() == metaKeys[unix.NFT_META_MARK].name
}
