package fsm

// ProviderType is a git provider's name in the API (API.md, "Enumerations").
type ProviderType string

// The provider types.
const (
	ProviderGitHub              ProviderType = "github"
	ProviderGitLab              ProviderType = "gitlab"
	ProviderBitbucket           ProviderType = "bitbucket"
	ProviderBitbucketDataCenter ProviderType = "bitbucket_data_center"
	ProviderForgejo             ProviderType = "forgejo"
	ProviderAzureDevOps         ProviderType = "azure_devops"
	ProviderEnterpriseSSO       ProviderType = "enterprise_sso"
)

// Provider is one git provider connection of a user, without its token.
type Provider struct {
	UserID string       `json:"user_id"`
	Type   ProviderType `json:"type"`
	// Host is nil for the provider's default host.
	Host *string `json:"host"`
	// ExternalUserID is the user's id at the provider (user_id in the API).
	ExternalUserID *string `json:"external_user_id"`
	// Ref's entry holds the member "token". It is zero when only a user id is known.
	Ref SecretRef `json:"ref"`
}

// Known reports whether the type is one of the provider types.
func (p ProviderType) Known() bool {
	switch p {
	case ProviderGitHub, ProviderGitLab, ProviderBitbucket, ProviderBitbucketDataCenter,
		ProviderForgejo, ProviderAzureDevOps, ProviderEnterpriseSSO:
		return true
	}
	return false
}
