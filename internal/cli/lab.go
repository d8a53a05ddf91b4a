package cli

import (
	"strings"

	"github.com/spf13/cobra"
)

// LabProgram is the program that measures.
const LabProgram = "scon-lab"

// LabCommands are the commands of scon that LabProgram carries out, with what
// they do.
var LabCommands = map[string]string{
	"bench":         "Measure native, container and express side by side",
	"lab":           "Build a gateway with containers from network namespaces",
	"latency":       "Measure the latency of every packet through lines of containers",
	"pin advise":    "Measure placements and recommend one that is better beyond noise, if any",
	"pipe bench":    "Measure the pipe's engines beside TCP, UNIX sockets and sockmap",
	"profile":       "Show where a packet's time goes, layer by layer",
	"startup bench": "Measure the start of many containers at once, with their network",
	"startup tune":  "Search the admission limits with the shortest start time",
}

// IsLabCommand reports whether LabProgram carries a command out: one of LabCommands, or
// one below it.
func IsLabCommand(cmd *cobra.Command) bool {
	for ; cmd.HasParent(); cmd = cmd.Parent() {
		if _, ok := LabCommands[strings.TrimPrefix(cmd.CommandPath(), "scon ")]; ok {
			return true
		}
	}
	return false
}
