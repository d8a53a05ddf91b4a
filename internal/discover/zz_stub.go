package discover

// Stub by the lead until the real Namer is here: delete this file with it.

type Container struct{ Name, ID string }

type Namer struct{}

func NewNamer() *Namer { return &Namer{} }

func (*Namer) Name(p Port) Container { return Container{Name: p.Name} }
