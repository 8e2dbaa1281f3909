//go:build !drills

package fault

// At marks a point where a drill may kill this process; the point's label is
// "<moment> <what>". In ordinary builds it does nothing.
func At(moment, what string) {}
