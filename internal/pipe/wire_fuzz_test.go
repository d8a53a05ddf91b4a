package pipe

import "testing"

// FuzzRequest: every packet is a request with a known operation, or is refused.
func FuzzRequest(f *testing.F) {
	f.Add(make([]byte, messageSize))
	f.Add(append([]byte{byte(opHello), 0, 0, 0}, make([]byte, messageSize-4)...))
	f.Add([]byte{byte(opHello)})
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := parseRequest(b)
		if err == nil && (len(b) != messageSize || r.Op < opHello || r.Op >= opEnd || r.file != -1) {
			t.Errorf("%x: %+v", b, r)
		}
	})
}
