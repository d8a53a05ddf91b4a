package express

// ForceClsact makes daemons of this process hook devices by clsact.
func ForceClsact() { forceClsact = true }
