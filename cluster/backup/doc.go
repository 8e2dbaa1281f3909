// Package backup writes snapshot files and manages a directory of them. The leader makes a backup
// at each interval, loads it on trial, and removes old backups beyond the number to retain.
package backup
