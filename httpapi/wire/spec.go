package wire

import (
	"bivouac.dev/bivouac/fsm"
)

// Specs is the response of the operator's spec list.
type Specs struct {
	Items []Spec `json:"items"`
}

// Spec is a stored spec with the state of its warm pool.
type Spec struct {
	*fsm.Spec
	Members Pool `json:"pool_members"`
}

// Pool counts a warm pool's members: the claimable ones, and all.
type Pool struct {
	Ready int `json:"ready"`
	All   int `json:"all"`
}
