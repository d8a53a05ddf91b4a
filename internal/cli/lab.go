package cli

// LabProgram is the program that measures.
const LabProgram = "scon-lab"

// LabCommands are the commands of scon that LabProgram carries out, with what
// they do.
var LabCommands = map[string]string{
	"bench":         "Measure native, container and express side by side",
	"lab":           "Build a gateway with containers out of network namespaces",
	"latency":       "Measure the latency of every packet through lines of containers",
	"pin advise":    "Measure candidates, and recommend what was better beyond noise, if anything",
	"pipe bench":    "Measure the pipe's engines beside TCP, UNIX sockets and sockmap",
	"profile":       "Show where the time of a packet's way goes, layer by layer",
	"startup bench": "Measure how soon containers that start at once are up with their network",
	"startup tune":  "Search the admission limits under which containers start soonest",
}
