package membership

import (
	"errors"
	"slices"
	"strings"

	"github.com/hashicorp/raft"

	"bivouac.dev/bivouac/cluster/peernet"
)

// Listed reports whether a configuration has a member.
func Listed(servers []raft.Server, id raft.ServerID) bool {
	return slices.ContainsFunc(servers, func(s raft.Server) bool { return s.ID == id })
}

// HasVoter reports whether a configuration has a member that votes.
func HasVoter(servers []raft.Server, id raft.ServerID) bool {
	return slices.ContainsFunc(servers, func(s raft.Server) bool { return s.ID == id && s.Suffrage == raft.Voter })
}

// Voters counts the voters of a configuration.
func Voters(servers []raft.Server) (count int) {
	for _, s := range servers {
		if s.Suffrage == raft.Voter {
			count++
		}
	}
	return count
}

// Named finds a member by its name.
func Named(servers []raft.Server, name string) (raft.Server, bool) {
	for _, s := range servers {
		if peernet.NodeName(s.ID) == name {
			return s, true
		}
	}
	return raft.Server{}, false
}

// At reports whether a configuration has a member at the address.
func At(servers []raft.Server, address string) bool {
	return slices.ContainsFunc(servers, func(s raft.Server) bool { return string(s.Address) == address })
}

// nowhere starts the placeholder address of a member whose former address belongs to another node.
// Raft's configuration needs a unique address for each member.
const nowhere = "nowhere:"

// ErrNoAddress is the error of a call to a member without an address.
var ErrNoAddress = errors.New("its address is not known: another node is where it was")

// Nowhere is the placeholder address of a member.
func Nowhere(id raft.ServerID) raft.ServerAddress { return raft.ServerAddress(nowhere + id) }

// Address returns a member's configured address, "" for a placeholder.
func Address(s raft.Server) string {
	if strings.HasPrefix(string(s.Address), nowhere) {
		return ""
	}
	return string(s.Address)
}
